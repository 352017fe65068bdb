/* SPDX-License-Identifier: Apache-2.0 */
/* sums.c: what becomes of the heads' outputs before they are projected: they are gated,
 * and normed; those of heads that are left out are 0. Rows are independent. */
#include "math/run/run.h"

#include "base/size.h"
#include "math/rows/norm.h"

#include <string.h>

#define LOG2_E 1.4426950408889634F

/* Multiplies `count` numbers by the sigmoid of their gates, 1 / (1 + 2^-(g log2 e)),
 * which overwrites the gates. A gate that is not finite makes its number NaN: its sum may
 * have overflowed in passing. */
static void gate_numbers(const struct kernels *kernels, size_t count, float *gates,
                         float *numbers) {
    for (size_t i = 0; i < count; i++) {
        float exponent = -LOG2_E * gates[i];
        numbers[i] += gates[i] - gates[i];
        gates[i] = exponent < 128.0F ? exponent : 128.0F; /* 2^128 is infinite */
    }
    kernels->exp2(gates, count);
    for (size_t i = 0; i < count; i++)
        numbers[i] /= 1.0F + gates[i];
}

/* Gates the heads of a row that are summed. */
static void gate_row(const struct run *run, size_t row) {
    size_t first_number = row * run->plan->layer.hidden;
    size_t size = run->model->info.width.head;

    for (size_t i = 0; i < run->summed.count; i++) {
        const struct range *heads = &run->summed.items[i];
        size_t first = first_number + heads->first * size;
        gate_numbers(run->model->engine.kernels, (heads->end - heads->first) * size,
                     run->gates + first, run->context + first);
    }
}

/* Whether outputs are wanted, and heads are left out. */
static bool leaves_out(const struct run *run) {
    const struct plan_layer *layer = &run->plan->layer;
    return layer->sums && layer->num_summed < run->model->info.num_heads;
}

/* Makes the outputs of heads that are left out 0: nothing else writes there. */
static void clear_left_out(const struct run *run, float *row) {
    size_t size = run->model->info.width.head;

    for (size_t h = 0; h < run->model->info.num_heads; h++) {
        if (ranges_find(run->summed, h) == SIZE_MAX)
            memset(row + h * size, 0, size * sizeof *row);
    }
}

/* Clears, gates and norms a strip of rows. */
static void finish_strip(void *data, size_t index, size_t thread) {
    const struct run *run = *(const struct run *const *)data;
    const attn_model *model = run->model;
    size_t hidden = run->plan->layer.hidden;
    size_t strip_rows = model->engine.kernels->strip_rows, row = index * strip_rows;
    size_t end = size_min(row + strip_rows, run->plan->batch.num_queries);
    const struct norm norm = {.eps = model->info.out_norm.eps,
                              .weight = model->arrays[MODEL_OUT_NORM].numbers,
                              .size = hidden};

    (void)thread;
    for (; row < end; row++) {
        float *numbers = run->context + row * hidden;
        if (leaves_out(run))
            clear_left_out(run, numbers);
        if (run->plan->layer.gates)
            gate_row(run, row);
        if (run->plan->layer.norms_sums)
            norm_row(&norm, numbers, numbers);
    }
}

void run_finish_sums(const struct run *run) {
    const struct plan_layer *layer = &run->plan->layer;
    size_t rows = run->plan->batch.num_queries;
    double cleared = leaves_out(run) ? (double)rows * (double)layer->hidden : 0;

    if (cleared > 0 || layer->gates || layer->norms_sums)
        share_tasks(run->request->parallel, run->plan->flops.finish_sums + cleared,
                    (rows - 1) / run->model->engine.kernels->strip_rows + 1, finish_strip,
                    &run);
}
