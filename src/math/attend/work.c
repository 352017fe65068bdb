/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: finds what a panel reads and writes. */
#include "math/attend/work.h"

#include "math/mask.h"

#include <math.h>

void work_init(struct panel_work *work, const struct run *run,
               const struct sequence_position *at, size_t panel, size_t thread) {
    const attn_request *request = run->request;
    const struct engine *engine = &run->model->engine;
    size_t columns = engine->kernels->columns,
           query_len = request->query_lens[at->sequence];
    size_t first = panel * columns;
    size_t left = (at->direct ? run->plan->num_scored : 1) * query_len - first;

    work->run = run;
    work->kernels = at->direct ? engine->float_kernels : engine->kernels;
    work->at = *at;
    work->panel = panel;
    work->piece = 0;
    work->thread = thread;
    work->num_queries = left < columns ? left : columns;
    for (size_t c = 0; c < work->num_queries; c++) {
        size_t query = (first + c) % query_len;
        size_t num_keys = mask_num_keys(request, at->sequence, at->first_query, query);
        /* A single key gets all the weight, even if its score overflows. */
        work->uniform[c] = num_keys <= 1;
        work->num_keys[c] = num_keys > 0 ? num_keys : request->key_lens[at->sequence];
    }
}

/* Returns the first row of the panel in the sequence. */
static size_t work_first(const struct panel_work *work) {
    return work->panel * work->kernels->columns;
}

size_t work_head(const struct panel_work *work, size_t c, size_t head) {
    const struct run *run = work->run;
    size_t query_len = run->request->query_lens[work->at.sequence];
    return work->at.direct ? ranges_item(run->scored, (work_first(work) + c) / query_len)
                           : head;
}

size_t work_query(const struct panel_work *work, size_t c) {
    return (work_first(work) + c) % work->run->request->query_lens[work->at.sequence];
}

void work_find_weights(struct panel_work *work, size_t head) {
    const struct run *run = work->run;
    const attn_request *request = run->request;
    size_t sequence = work->at.sequence, key_len = request->key_lens[sequence];

    work->weighs = false;
    for (size_t c = 0; run->weights != NULL && c < work->num_queries; c++) {
        size_t query = work_query(work, c);
        int32_t head_slot = run->head_slots[work_head(work, c, head)];
        int32_t query_slot = run->query_slots[query];
        work->weights[c] = NULL;
        if (head_slot < 0 || query_slot < 0)
            continue;
        size_t row = (size_t)head_slot * plan_weights_rows(request, sequence);
        work->weights[c] =
            run->weights + work->at.first_weight + (row + (size_t)query_slot) * key_len;
        work->weighs = true;
    }
}

struct head_rows work_head_rows(const struct run *run, const struct sequence_position *at,
                                size_t head) {
    const attn_model *model = run->model;
    const struct plan *plan = run->plan;
    size_t row = head * plan->projected_keys + at->first_projected;
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
    if (plan->by_head) {
        size_t words = plan->key_panels ? score_size / k_step : score_size;
        return (struct head_rows){
            .keys = run->keys + row * words,
            .keys_ld = words,
            .values = run->values + row * head_size,
            .values_ld = head_size,
            .keys_in_panels = plan->key_panels,
        };
    }
    return (struct head_rows){
        .keys = run->keys + at->first_projected * plan->score_width + head * score_size,
        .keys_ld = plan->score_width,
        .values = run->values + at->first_projected * plan->hidden + head * head_size,
        .values_ld = k_step * plan->hidden,
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
    panel->head_size = run->model->info.value_size;
    panel->factor = 1.0F;
}

struct query_panel work_describe(const struct panel_work *work, size_t head,
                                 const struct head_rows *rows) {
    const struct run *run = work->run;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t head_size = run->model->info.head_size;
    size_t row = work->at.first_query + work_first(work);
    float factor = mask_head_factor(run->request, head);

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
        .num_keys = work->num_keys,
        .uniform = work->uniform,
        .additive_score = engine->additive_score,
        .score_size = engine->score_size,
        .head_size = factor != 0.0F ? head_size : 0,
        .scale = 1.0F / sqrtf((float)engine->score_size),
        .factor = factor,
        .outputs = run->context + row * plan->hidden + head * head_size,
        .outputs_ld = plan->hidden,
        .weights = work->weighs ? work->weights : NULL,
        .position = (ptrdiff_t)work_first(work),
        .scratch = run->thread_scratch + work->thread * plan->thread_floats,
    };
    if (work->at.direct)
        describe_direct(work, &panel);
    return panel;
}
