/* SPDX-License-Identifier: Apache-2.0 */
/* run.h: the steps of attn_run(), each cut into tasks of a parallel for loop. How a
 * step is cut never changes a bit of what the native engine computes. */
#ifndef ATTND_MATH_RUN_H
#define ATTND_MATH_RUN_H

#include "math/model.h"
#include "math/plan.h"

#define RUN_TASKS_PER_THREAD                                                             \
    8                      /* tasks per thread, so that none waits long for the last */
#define RUN_NARROW_FLOPS 4 /* what making one number narrow counts for in run_share() */

/* What every step of one call needs. */
struct run {
    const attn_model *model;
    const attn_request *request;
    const struct plan *plan;
    float *narrow;         /* elements of one input; unused without bfloat16 */
    float *queries, *keys; /* [rows, score_width] */
    float *values;         /* [sum of Tk, H*D] */
    float *context;        /* [sum of Tq, H*D]: the heads' outputs */
    float *weights;        /* attn_result.weights; NULL when not wanted */
    size_t *first_panels;  /* [B + 1] */
    float *thread_scratch;
};

/* Calls task(data, index, thread) for every index below `count`: in parallel when
 * `flops`, the operations of all tasks together, pay for it; else here, in order. */
void run_share(const struct run *run, double flops, size_t count,
               void (*task)(void *data, size_t index, size_t thread), void *data);

/* The first step: queries, keys and values, those that are the same tensor together. */
void run_project_inputs(const struct run *run);

/* The second: every panel of queries of every head attends. Overwrites queries, and with
 * bfloat16 keys and values. */
void run_attend(const struct run *run);

/* The third: the heads' outputs to `outputs` [sum of Tq, out_size]; overwrites them with
 * bfloat16. Not without output projection. */
void run_project_outputs(const struct run *run, float *outputs);

#endif
