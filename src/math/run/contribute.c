/* SPDX-License-Identifier: Apache-2.0 */
/* contribute.c: the outputs, and what each head adds to them: its own outputs alone,
 * through the output projection without the bias. */
#include "base/pace.h"
#include "math/mask.h"
#include "math/run/pass.h"
#include "math/run/run.h"

#include <string.h>

/* Copies one head's outputs of a row, with zeros for the other heads. */
static void copy_head(const struct run *run, size_t head, size_t row, float *to) {
    size_t size = run->model->info.width.head, hidden = run->plan->layer.hidden;

    pace_add(hidden);
    memset(to, 0, hidden * sizeof *to);
    if (mask_head_factor(run->request, head) != 0.0F)
        memcpy(to + head * size, run->context + row * hidden + head * size,
               size * sizeof *to);
}

/* Copies the selected rows of a head to run->one_head; returns how many there are. */
static size_t copy_rows_of_head(const struct run *run, size_t head) {
    const attn_request *request = run->request;
    size_t hidden = run->plan->layer.hidden, rows = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t count = result_rows(request, s);
        for (size_t i = 0; i < count; i++, rows++) {
            ptrdiff_t row = (ptrdiff_t)i;
            if (request->weights_queries != NULL)
                row = request->weights_queries[i];
            if (row < 0)
                row += (ptrdiff_t)request->query_lens[s];
            copy_head(run, head, run->sequences[s].first_query + (size_t)row,
                      run->one_head + rows * hidden);
        }
    }
    return rows;
}

/* Where a layer has no output projection, its outputs are those of the heads. */
static void write_rows(const struct run *run, size_t rows, float *to, size_t to_ld) {
    size_t hidden = run->plan->layer.hidden;
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * to_ld, run->one_head + r * hidden, hidden * sizeof *to);
}

struct linear run_output_without_bias(const struct run *run) {
    struct linear linear = run->model->engine.linears[ATTN_OUTPUT];
    linear.bias = NULL;
    linear.panels.bias = run->no_bias;
    return linear;
}

void run_contribute(const struct run *run, float *contributions) {
    const attn_request *request = run->request;
    const attn_model_info *info = &run->model->info;
    size_t heads = run->plan->wanted.num_selected, out = info->width.out;
    size_t k_step = run->model->engine.kernels->k_step;
    size_t words = (run->plan->layer.hidden + k_step - 1) / k_step;
    const struct linear linear = run_output_without_bias(run);
    const struct range all = {0, words};

    for (size_t i = 0; i < heads; i++, contributions += out) {
        size_t head = run->plan->wanted.selects_heads ? request->weights_heads[i] : i;
        size_t rows = copy_rows_of_head(run, head);
        if (!info->linears[ATTN_OUTPUT].weight)
            write_rows(run, rows, contributions, heads * out);
        else if (rows > 0)
            run_project_rows(run, &linear, run->one_head, rows, (struct ranges){&all, 1},
                             contributions, heads * out);
    }
}

void run_copy_heads(const struct run *run, float *outputs) {
    size_t hidden = run->plan->layer.hidden;
    struct row_pass pass = {.from = run->context,
                            .to = outputs,
                            .rows = run->plan->batch.num_queries,
                            .width = hidden,
                            .to_ld = hidden};

    run_pass(run, 1, &pass);
}

void run_project_outputs(const struct run *run, float *outputs) {
    const struct linear *linear = &run->model->engine.linears[ATTN_OUTPUT];

    run_project_rows(run, linear, run->context, run->plan->batch.num_queries,
                     run->summed_words, outputs, linear->out);
}
