/* SPDX-License-Identifier: Apache-2.0 */
/* project.h: the projections of inputs and outputs. */
#ifndef ATTND_MATH_RUN_PROJECT_H
#define ATTND_MATH_RUN_PROJECT_H

#include "math/run/run.h"

/* The first step: projects queries, keys and values, which the norm before the layer
 * comes before; those that are the same tensor go together. Keys and values of direct
 * sequences are not projected. */
void run_project_inputs(const struct run *run);

/* Copies the heads' outputs to `heads` [sum of Tq, H*D]. */
void run_copy_heads(const struct run *run, float *heads);

/* The third step: projects the heads' outputs to `outputs` [sum of Tq, out_size]; with
 * bfloat16 it overwrites them. Only for models with an output projection. */
void run_project_outputs(const struct run *run, float *outputs);

#endif
