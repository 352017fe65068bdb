/* SPDX-License-Identifier: Apache-2.0 */
/* panel.c: attends in the heads of a panel, or in all of them for their mean. */
#include "math/attend/panel.h"

#include "math/attend/chunks.h"
#include "math/plan/rules.h"

#include <string.h>

/* Returns whether there is nothing to compute: heads are left out, and none of their
 * weights is wanted. */
static bool is_idle(const struct panel_work *work, const struct query_panel *panel) {
    const struct run *run = work->run;
    if (work->num_queries == 0)
        return true;
    return panel->factor == 0.0F && !work->weighs && run->panel_sums == NULL &&
           run->lse == NULL;
}

/* The outputs of a head that is left out are 0. Its values were not projected. Heads that
 * are not scored have no rows; the first panel clears their outputs. */
static void clear_left_out(const struct panel_work *work,
                           const struct query_panel *panel) {
    const struct run *run = work->run;
    size_t size = run->model->info.head_size, hidden = run->plan->layer.hidden;
    size_t query_len = run->request->query_lens[work->at.sequence];

    for (size_t c = 0; panel->factor == 0.0F && c < work->num_queries; c++)
        memset(panel->outputs + c * panel->outputs_ld, 0, size * sizeof *panel->outputs);
    for (size_t h = work->range.first; work->panel == 0 && h < work->range.end; h++) {
        float *to = run->context + work->at.first_query * hidden + h * size;
        for (size_t q = 0; ranges_find(run->scored, h) == SIZE_MAX && q < query_len; q++)
            memset(to + q * hidden, 0, size * sizeof *to);
    }
}

/* Returns where the sums of a head go. */
static attn_head_sums *find_sums(const struct panel_work *work) {
    const struct run *run = work->run;
    size_t index = run->first_items[work->at.sequence];
    return run->panel_sums + index + work->panel * run->model->info.num_heads +
           work->heads;
}

void panel_attend(const struct panel_work *work, const struct head_rows *rows) {
    const struct query_panel panel = work_describe(work, rows);
    attn_head_sums *sums = work->run->panel_sums != NULL ? find_sums(work) : NULL;

    if (sums != NULL)
        *sums = (attn_head_sums){0};
    if (!is_idle(work, &panel))
        chunks_attend(work, &panel, sums);
    clear_left_out(work, &panel);
}

void panel_attend_chunk(const struct panel_work *work, const struct head_rows *rows,
                        float *partials) {
    const struct query_panel whole = work_describe(work, rows);
    if (!is_idle(work, &whole))
        chunks_attend_one(work, &whole, partials);
}

void panel_merge(const struct panel_work *work, float *partials) {
    const struct head_rows rows = work->kind->rows(work->run, &work->at, work->heads);
    const struct query_panel whole = work_describe(work, &rows);

    if (!is_idle(work, &whole))
        chunks_merge(work, &whole, partials);
    clear_left_out(work, &whole);
}

/* Adds the weights `one` [key_len] of head `head` to the mean over all heads. */
static void add_to_mean(size_t head, size_t num_heads, const float *one, size_t key_len,
                        float *mean) {
    for (size_t k = 0; k < key_len; k++) {
        if (head == 0)
            mean[k] = one[k] / (float)num_heads;
        else
            mean[k] = mean[k] + one[k] / (float)num_heads;
    }
}

/* Attends, and adds the weights to the mean. The weights of each head go through the
 * thread's scratch. */
static void attend_to_mean(struct panel_work *work) {
    const struct run *run = work->run;
    const struct head_rows rows = work->kind->rows(run, &work->at, work->heads);
    size_t key_len = work->mask->key_len;
    float *one = run_thread(run, work->thread, PLAN_THREAD_MEAN);
    float *means[KERNEL_COLUMNS_MAX] = {NULL};

    for (size_t c = 0; c < work->num_queries; c++) {
        means[c] = work->weights[c];
        work->weights[c] = means[c] != NULL ? one + c * key_len : NULL;
    }
    panel_attend(work, &rows);
    for (size_t c = 0; c < work->num_queries; c++) {
        if (means[c] != NULL)
            add_to_mean(work->row_heads[c], run->model->info.num_heads, work->weights[c],
                        key_len, means[c]);
    }
}

void panel_attend_mean(struct panel_work *work) {
    const struct run *run = work->run;
    const struct sequence_position at = work->at;
    const struct plan_items items =
        plan_items(run->plan, run->model, run->request, at.sequence);
    size_t columns = work->kernels->columns, panel = work->panel;
    size_t end = items.shared > 1 ? (items.rows - 1) / columns + 1 : panel + 1;

    for (size_t heads = 0; heads < run->model->info.num_heads / items.shared; heads++) {
        for (size_t p = panel; p < end; p++) {
            work_init(work, run, &at, work->mask, heads, p, work->thread);
            attend_to_mean(work);
        }
    }
}
