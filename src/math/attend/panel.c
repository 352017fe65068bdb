/* SPDX-License-Identifier: Apache-2.0 */
/* panel.c: attends in one head, or in all of them for their mean. */
#include "math/attend/panel.h"

#include "math/attend/chunks.h"

#include <string.h>

/* Returns whether a head has nothing to compute: it is left out, and nobody looks at
 * it. */
static bool is_idle(const struct panel_work *work, const struct query_panel *panel) {
    const struct run *run = work->run;
    if (work->num_queries == 0)
        return true;
    return panel->factor == 0.0F && !work->weighs && run->panel_sums == NULL &&
           run->lse == NULL;
}

/* The outputs of a head that is left out are 0. Its values were not projected. */
static void clear_left_out(const struct panel_work *work,
                           const struct query_panel *panel) {
    size_t head_size = work->run->model->info.head_size;

    for (size_t c = 0; panel->factor == 0.0F && c < work->num_queries; c++)
        memset(panel->outputs + c * panel->outputs_ld, 0,
               head_size * sizeof *panel->outputs);
}

/* The same for those heads of a group that have no rows. The others may still need their
 * queries, which the outputs overwrite. */
static void clear_group(const struct panel_work *work) {
    const struct run *run = work->run;
    size_t head_size = run->model->info.head_size, hidden = run->plan->hidden;
    size_t first = work->head * run->plan->group;
    size_t query_len = run->request->query_lens[work->at.sequence];

    if (!work->at.grouped || work->panel > 0)
        return;
    for (size_t h = first; h < first + run->plan->group; h++) {
        float *to = run->context + work->at.first_query * hidden + h * head_size;
        for (size_t q = 0; ranges_find(run->scored, h) == SIZE_MAX && q < query_len; q++)
            memset(to + q * hidden, 0, head_size * sizeof *to);
    }
}

/* Returns where the sums of a head go. */
static attn_head_sums *find_sums(const struct panel_work *work) {
    const struct run *run = work->run;
    size_t index = run->first_items[work->at.sequence];
    return run->panel_sums + index + work->panel * run->model->info.num_heads +
           work->head;
}

/* As panel_attend(), with the weights that `work` says. */
static void attend_head(const struct panel_work *work, const struct head_rows *rows) {
    const struct query_panel panel = work_describe(work, rows);
    attn_head_sums *sums = work->run->panel_sums != NULL ? find_sums(work) : NULL;

    if (sums != NULL)
        *sums = (attn_head_sums){0};
    if (!is_idle(work, &panel))
        chunks_attend(work, &panel, sums);
    clear_left_out(work, &panel);
    clear_group(work);
}

void panel_attend(struct panel_work *work, size_t head, const struct head_rows *rows) {
    work_set_head(work, head);
    attend_head(work, rows);
}

void panel_attend_chunk(struct panel_work *work, size_t head,
                        const struct head_rows *rows, float *partials) {
    work_set_head(work, head);
    const struct query_panel whole = work_describe(work, rows);
    if (!is_idle(work, &whole))
        chunks_attend_one(work, &whole, partials);
}

void panel_merge(struct panel_work *work, size_t head, float *partials) {
    const struct head_rows rows = work_head_rows(work->run, &work->at, head);

    work_set_head(work, head);
    const struct query_panel whole = work_describe(work, &rows);
    if (!is_idle(work, &whole))
        chunks_merge(work, &whole, partials);
    clear_left_out(work, &whole);
    clear_group(work);
}

float *panel_thread_extra(const struct run *run, size_t thread) {
    return run->thread_scratch + thread * run->plan->thread_floats +
           run->plan->thread_extra;
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

/* Attends in one head, or in those of the rows, and adds the weights to the mean. */
static void attend_to_mean(struct panel_work *work, size_t head) {
    const struct run *run = work->run;
    const struct head_rows rows = work_head_rows(run, &work->at, head);
    size_t key_len = run->request->key_lens[work->at.sequence];
    float *one = panel_thread_extra(run, work->thread);
    float *means[KERNEL_COLUMNS_MAX] = {NULL};

    /* The weights of each head go through the thread's scratch. */
    work_set_head(work, head);
    for (size_t c = 0; c < work->num_queries; c++) {
        means[c] = work->weights[c];
        work->weights[c] = means[c] != NULL ? one + c * key_len : NULL;
    }
    attend_head(work, &rows);
    for (size_t c = 0; c < work->num_queries; c++) {
        if (means[c] != NULL)
            add_to_mean(work_head(work, c), run->model->info.num_heads, work->weights[c],
                        key_len, means[c]);
    }
}

void panel_attend_mean(struct panel_work *work) {
    const struct run *run = work->run;
    const struct sequence_position at = work->at;
    size_t columns = work->kernels->columns;
    size_t rows = run->plan->num_scored * run->request->query_lens[at.sequence];

    if (at.direct) {
        for (size_t panel = 0; panel * columns < rows; panel++) {
            work_init(work, run, &at, work->mask, 0, panel, work->thread);
            attend_to_mean(work, 0);
        }
        return;
    }
    for (size_t h = 0; h < run->model->info.num_heads; h++)
        attend_to_mean(work, h);
}
