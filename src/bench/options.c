/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: the options of attnd-bench alone; config/compute.c has the shared ones. */
#include "bench/bench.h"

#include <limits.h>

#define OPTION(text, type, member) OPTION_OF(struct bench_config, text, type, member)

const char *const bench_parts[] = {"layer",       "attention", "projection",
                                   "dot-product", "stored",    NULL};

static const struct option own_options[] = {
    {OPTION("model", TEXTS, models), .metavar = "NAME=PATH[,KEY=VALUE]...",
     .help = "Time a layer of a file, or the layers of a folder, with the keys of "
             "attnd --model. May be repeated."},
    {OPTION("shape", TEXTS, shapes), .metavar = "B,T[,WIDTH,HEADS][,TK]",
     .help =
         "What to time: B sequences of T queries and TK keys. With WIDTH and HEADS, a "
         "made-up layer with WIDTH numbers in a row; without, each layer that --model "
         "names. Without TK there are as many keys as queries. The default is "
         "8,512,768,12, or 8,512 where there is a --model. May be repeated."},
    {OPTION("part", CHOICE, part), .value = "layer",
     .metavar = "layer|attention|projection|dot-product|stored", .choices = bench_parts,
     .help =
         "What to time: the whole layer, the attention between the projections, the "
         "output projection, or queries and keys as POST /v1/attention/dot-product takes "
         "them, whose rows have WIDTH numbers. With stored the 8 largest weights of keys "
         "that a capture keeps, in float32 and in bfloat16."},
    {OPTION("kv-heads", COUNT, kv_heads), .max = INT_MAX, .metavar = "N",
     .help = "Key heads of --part dot-product and stored, of which HEADS is a multiple. "
             "0 means as many as HEADS."},
    {OPTION("causal", FLAG, causal),
     .help = "Use a causal mask, which a --model may have without this."},
    {OPTION("weights", FLAG, weights),
     .help = "Compute the attention weights of every head too."},
    {OPTION("seconds", COUNT, seconds), .value = "3", .max = 3600, .metavar = "N",
     .help = "Time to spend on each shape. 0 means one round, which measures little."},
    {OPTION("json", FLAG, json), .help = "Print one JSON object for each shape."},
    {OPTION("version", FLAG, version), .help = "Print the version and exit.",
     .letter = 'V'},
    {OPTION("help", FLAG, help), .help = "Print this help and exit.", .letter = 'h'},
};

const struct option_set bench_options = {
    .program = "attnd-bench",
    .own = own_options,
    .num_own = sizeof own_options / sizeof own_options[0],
    .shared = compute_options,
    .num_shared = COMPUTE_NUM_OPTIONS,
};
