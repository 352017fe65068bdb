/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: finds what a panel reads and writes. */
#include "math/attend/work.h"

#include "math/plan/rules.h"

#include <string.h>

/* Returns the first row of the panel in the sequence. */
static size_t work_first(const struct panel_work *work) {
    return work->panel * work->kernels->columns;
}

size_t work_head(const struct panel_work *work, size_t c) {
    const struct run *run = work->run;
    size_t query_len = run->request->query_lens[work->at.sequence];
    if (!work->at.direct && !work->at.grouped)
        return work->head;
    return ranges_item(run->scored,
                       work->first_index + (work_first(work) + c) / query_len);
}

size_t work_query(const struct panel_work *work, size_t c) {
    return (work_first(work) + c) % work->run->request->query_lens[work->at.sequence];
}

/* Finds the keys of each row of the panel, and those of all rows. */
static void find_keys(struct panel_work *work) {
    const bool sinks = work->run->model->info.sinks;
    const struct mask *mask = work->mask;

    work->keys = (struct range){mask->key_len, 0};
    for (size_t c = 0; c < work->num_queries; c++) {
        struct mask_keys keys = mask_find_keys(mask, work_query(work, c));
        size_t count = keys.end - keys.first;

        work->keyless[c] = count == 0;
        if (count == 0)
            keys = (struct mask_keys){0, sinks ? 0 : mask->key_len};
        /* A single key gets all the weight, even if its score overflows. */
        work->uniform[c] = count <= 1 && !sinks;
        work->first_keys[c] = keys.first;
        work->end_keys[c] = keys.end;
        if (keys.first < keys.end && keys.first < work->keys.first)
            work->keys.first = keys.first;
        if (keys.end > work->keys.end)
            work->keys.end = keys.end;
    }
    if (work->keys.end == 0)
        work->keys.first = 0;
}

/* Returns which of the scored heads the panels of a sequence are of. */
static struct range find_indices_of(const struct run *run,
                                    const struct sequence_position *at, size_t head) {
    size_t first = head * run->plan->group, end = first + run->plan->group;

    if (at->direct)
        return (struct range){0, run->plan->num_scored};
    if (!at->grouped)
        return (struct range){0, 1};
    return (struct range){ranges_below(run->scored, first),
                          ranges_below(run->scored, end)};
}

void work_init(struct panel_work *work, const struct run *run,
               const struct sequence_position *at, const struct mask *mask, size_t head,
               size_t panel, size_t thread) {
    const struct engine *engine = &run->model->engine;
    size_t columns = engine->kernels->columns;
    const struct range indices = find_indices_of(run, at, head);
    size_t rows = (indices.end - indices.first) * run->request->query_lens[at->sequence];
    size_t left = rows > panel * columns ? rows - panel * columns : 0;

    work->run = run;
    work->kernels = at->direct ? engine->float_kernels : engine->kernels;
    work->at = *at;
    work->mask = mask;
    work->panel = panel;
    work->chunk = 0;
    work->thread = thread;
    work->num_queries = left < columns ? left : columns;
    work->first_index = indices.first;
    find_keys(work);
}

/* Finds where the weights of a row go in the result; NULL when they are not wanted. */
static float *find_weights(const struct panel_work *work, size_t c) {
    const struct run *run = work->run;
    size_t sequence = work->at.sequence;

    if (run->weights == NULL)
        return NULL;
    int32_t head_index = run->head_indices[work_head(work, c)];
    int32_t query_index = run->query_indices[work_query(work, c)];
    if (head_index < 0 || query_index < 0)
        return NULL;
    size_t row = (size_t)head_index * plan_weights_rows(run->request, sequence);
    return run->weights + work->at.first_weight +
           (row + (size_t)query_index) * run->request->key_lens[sequence];
}

void work_set_head(struct panel_work *work, size_t head) {
    work->head = head;
    work->weighs = false;
    for (size_t c = 0; c < work->num_queries; c++) {
        work->weights[c] = find_weights(work, c);
        work->weighs = work->weighs || work->weights[c] != NULL;
    }
}

struct head_rows work_head_rows(const struct run *run, const struct sequence_position *at,
                                size_t head) {
    const attn_model *model = run->model;
    const struct plan *plan = run->plan;
    size_t key_head = at->grouped ? head : head / plan->group;
    size_t row = key_head * plan->projected_keys + at->first_projected;
    size_t key_size = model->info.key_size, value_size = model->info.value_size;
    size_t score_size = model->engine.score_size, head_size = model->info.head_size;
    size_t k_step = model->engine.kernels->k_step;

    if (at->direct)
        return (struct head_rows){
            .keys = run->request->keys + at->first_key * key_size,
            .keys_ld = key_size,
            .values = run->request->values + at->first_key * value_size,
            .values_ld = value_size,
        };
    if (plan->by_head)
        return (struct head_rows){
            .keys = run->keys + row * plan->key_ld,
            .keys_ld = plan->key_ld,
            .values = run->values + row * head_size,
            .values_ld = head_size,
            .keys_in_panels = plan->key_panels,
        };
    return (struct head_rows){
        .keys = run->keys + at->first_projected * plan->key_ld + key_head * score_size,
        .keys_ld = plan->key_ld,
        .values =
            run->values + at->first_projected * plan->value_width + key_head * head_size,
        .values_ld = k_step * plan->value_width,
    };
}

/* Points a panel of a direct sequence at its rows. Their outputs are not final, so they
 * are not multiplied by the factors of their heads. */
static void describe_direct(const struct panel_work *work, struct query_panel *panel) {
    const struct run *run = work->run;
    size_t row = work->at.first_direct + work_first(work);

    panel->outputs = run->direct + row * run->plan->direct_ld;
    panel->queries = panel->outputs;
    panel->outputs_ld = panel->queries_ld = run->plan->direct_ld;
    panel->score_size = run->model->info.key_size;
    panel->head_size = run->plan->sums ? run->model->info.value_size : 0;
    panel->factor = 1.0F;
}

/* Gathers the queries of a group of heads. Their outputs may overwrite them. */
static void describe_group(const struct panel_work *work, struct query_panel *panel) {
    const struct run *run = work->run;
    const struct plan *plan = run->plan;
    size_t size = panel->score_size;
    float *rows =
        run->thread_scratch + work->thread * plan->thread_floats + plan->thread_queries;

    for (size_t c = 0; c < work->num_queries; c++) {
        size_t row = work->at.first_query + work_query(work, c);
        memcpy(rows + c * size,
               run->queries + row * plan->score_width + work_head(work, c) * size,
               size * sizeof *rows);
    }
    panel->queries = panel->outputs = rows;
    panel->queries_ld = panel->outputs_ld = size;
    panel->head_size = ranges_find(run->summed_keys, work->head) != SIZE_MAX ? size : 0;
    panel->factor = 1.0F;
}

struct row_outputs work_outputs(const struct panel_work *work,
                                const struct query_panel *panel, size_t c) {
    const struct run *run = work->run;
    size_t row = work->at.first_query + work_query(work, c), head = work_head(work, c);

    if (!work->at.grouped)
        return (struct row_outputs){panel->outputs + c * panel->outputs_ld,
                                    panel->factor};
    return (struct row_outputs){run->context + row * run->plan->hidden +
                                    head * run->model->info.head_size,
                                plan_sums_head(run->plan, run->request, head)
                                    ? mask_head_factor(run->request, head)
                                    : 0.0F};
}

struct query_panel work_describe(const struct panel_work *work,
                                 const struct head_rows *rows) {
    const struct run *run = work->run;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    const attn_model_info *info = &run->model->info;
    size_t head_size = info->head_size, head = work->head;
    size_t row = work->at.first_query + work_first(work);
    bool sums = !work->at.grouped && plan_sums_head(plan, run->request, head);
    float factor = sums ? mask_head_factor(run->request, head) : 0.0F;

    struct query_panel panel = {
        .queries = run->queries + row * plan->score_width + head * engine->score_size,
        .queries_ld = plan->score_width,
        .num_queries = work->num_queries,
        .keys = rows->keys,
        .keys_ld = rows->keys_ld,
        .keys_in_panels = rows->keys_in_panels,
        .values = rows->values,
        .values_ld = rows->values_ld,
        .key_len = run->request->key_lens[work->at.sequence],
        .end_keys = work->end_keys,
        .first_keys = work->first_keys,
        .uniform = work->uniform,
        .additive_score = engine->additive_score,
        .score_size = engine->score_size,
        .head_size = sums ? head_size : 0,
        .scale = (float)info->scale,
        .softcap = (float)info->softcap,
        .factor = factor,
        .outputs = run->context + row * plan->hidden + head * head_size,
        .outputs_ld = plan->hidden,
        .weights = work->weighs ? work->weights : NULL,
        .position = (ptrdiff_t)work_first(work),
        .scratch = run->thread_scratch + work->thread * plan->thread_floats,
    };
    if (work->at.direct)
        describe_direct(work, &panel);
    if (work->at.grouped)
        describe_group(work, &panel);
    return panel;
}
