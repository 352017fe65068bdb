/* SPDX-License-Identifier: Apache-2.0 */
/* compute.c: the table of options that both programs have. */
#include "config/compute.h"

/* The words that attn_model_set_engine() accepts. */
static const char *const engines[] = {"auto", "native", "openblas", NULL};
static const char *const cpus[] = {"auto", "amx",      "avx512", "avx2",
                                   "neon", "portable", NULL};
static const char *const precisions[] = {"f32", "bf16", NULL};

#define OPTION(text, type, member) OPTION_OF(struct config_compute, text, type, member)

const struct option compute_options[COMPUTE_NUM_OPTIONS] = {
    {OPTION("engine", CHOICE, engine), .value = "auto", .metavar = "auto|native|openblas",
     .choices = engines,
     .help =
         "What computes the projections: native kernels over weights that are packed "
         "at load, or OpenBLAS. auto is native where this CPU has fast kernels. "
         "The two are compared at start, and OpenBLAS serves a model if they disagree."},
    {OPTION("cpu", CHOICE, cpu), .value = "auto",
     .metavar = "auto|amx|avx512|avx2|neon|portable", .choices = cpus,
     .help = "Instruction set of the native kernels. "
             "auto chooses the fastest that this CPU has. "
             "amx multiplies by the matrix tiles of Intel's Xeons; with precision f32 "
             "many rows are faster by it, and single rows slower."},
    {OPTION("precision", CHOICE, precision), .value = "f32", .metavar = "f32|bf16",
     .choices = precisions,
     .help =
         "Precision of products. bf16 rounds their factors to bfloat16: a number is off "
         "by 1/256 of what it sums up in magnitude, mostly below 0.02 of the largest. "
         "It needs engine native, and a CPU with AMX, where it is several times as fast, "
         "or one of another maker than Intel with AVX512-BF16, up to twice as fast."},
    {OPTION("workers", COUNT, workers), .max = 256, .metavar = "N",
     .help = "Threads that decode requests, compute and encode replies. "
             "0 means one for each CPU that this process may use."},
};

attn_engine_options compute_engine_options(const struct config_compute *compute,
                                           const char *precision, bool serve_only) {
    return (attn_engine_options){
        .engine = engines[compute->engine],
        .cpu = cpus[compute->cpu],
        .precision = precision != NULL ? precision : precisions[compute->precision],
        .serve_only = serve_only,
    };
}
