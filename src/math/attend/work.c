/* SPDX-License-Identifier: Apache-2.0 */
/* work.c: finds what a panel reads and writes. */
#include "math/attend/work.h"

#include "base/size.h"
#include "math/attend/tokens.h"
#include "math/plan/rules.h"

#include <stdint.h>
#include <string.h>

/* Returns the first row of the panel. */
static size_t work_first(const struct panel_work *work) {
    return work->panel * work->kernels->columns;
}

/* Finds the keys of each row of the panel, and of all rows together. */
static void find_keys(struct panel_work *work) {
    const bool sinks = work->run->model->info.score.sinks;
    const struct mask *mask = work->mask;

    work->keys = (struct range){mask->key_len, 0};
    for (size_t c = 0; c < work->num_queries; c++) {
        struct range keys =
            mask_find_keys(mask, work->row_heads[c], work->row_queries[c]);
        size_t count = keys.end - keys.first;

        work->keyless[c] = count == 0;
        if (count == 0)
            keys = (struct range){0, sinks ? 0 : mask->key_len};
        /* A single key gets all the weight, even if its score overflows. */
        work->uniform[c] = count <= 1 && !sinks;
        work->first_keys[c] = keys.first;
        work->end_keys[c] = keys.end;
        if (keys.first < keys.end)
            work->keys.first = size_min(work->keys.first, keys.first);
        work->keys.end = size_max(work->keys.end, keys.end);
    }
    if (work->keys.end == 0)
        work->keys.first = 0;
}

bool work_find_selected(const struct panel_work *work, size_t c, size_t *ret_head,
                        size_t *ret_query) {
    int32_t head = work->run->head_indices[work->row_heads[c]];
    int32_t query = run_find_query(work->run, work->at.sequence, work->row_queries[c]);

    *ret_head = (size_t)head;
    *ret_query = (size_t)query;
    return head >= 0 && query >= 0;
}

float *work_weights_room(const struct panel_work *work, size_t c) {
    const struct run *run = work->run;
    const struct plan *plan = run->plan;
    size_t ld = plan_weights_ld(run->request->key_lens[work->at.sequence]);
    if (plan->scratch.shared_panels == 0)
        return run_thread(run, work->thread, run->thread.weights) + c * ld;

    const struct plan_items items = plan_items(plan, 0);
    size_t panel = work->heads * items.panels + work->panel;
    return run->shared_weights + (panel * plan->batch.panel_rows + c) * ld;
}

/* Finds where the weights of a row go in the result; NULL when they are not wanted. */
static float *find_weights(const struct panel_work *work, size_t c) {
    const struct run *run = work->run;
    size_t sequence = work->at.sequence, key_len = run->request->key_lens[sequence];
    size_t head, query;

    if (!plan_wants(run->plan, RESULT_WEIGHED))
        return NULL;
    bool mean = run->request->need_weights == ATTN_WEIGHTS_MEAN;
    bool selected = work_find_selected(work, c, &head, &query);
    if (mean ? query == SIZE_MAX : !selected)
        return NULL;
    if (run->weights == NULL)
        return work_weights_room(work, c);
    size_t row = mean ? 0 : head * result_rows(run->request, sequence);
    return run->weights + work->at.first_weight + (row + query) * key_len;
}

/* Finds the rows of the panel, and where their weights go. */
static void find_panel_rows(struct panel_work *work) {
    const struct run *run = work->run;
    size_t query_len = run->request->query_lens[work->at.sequence];
    size_t first = ranges_below(run->scored, work->range.first);
    size_t end = ranges_below(run->scored, work->range.end);
    size_t rows = (end - first) * query_len, row = work_first(work);

    work->num_queries = rows > row ? size_min(rows - row, work->kernels->columns) : 0;
    work->weighs = false;
    for (size_t c = 0; c < work->num_queries; c++, row++) {
        work->row_heads[c] = ranges_item(run->scored, first + row / query_len);
        work->row_queries[c] = row % query_len;
        work->weights[c] = find_weights(work, c);
        work->weighs = work->weighs || work->weights[c] != NULL;
    }
}

void work_init(struct panel_work *work, const struct run *run,
               const struct sequence_position *at, const struct mask *mask, size_t heads,
               size_t panel, size_t thread) {
    const struct engine *engine = &run->model->engine;
    size_t shared = run->plan->layer.shared[at->kind];

    work->run = run;
    work->kind = work_find_kind(at);
    work->kernels = work->kind->projected ? engine->kernels : engine->kernels->in_float32;
    work->at = *at;
    work->heads = heads;
    work->range = (struct range){heads * shared, (heads + 1) * shared};
    work->panel = panel;
    work->chunk = 0;
    work->thread = thread;
    work->mask = mask;
    find_panel_rows(work);
    find_keys(work);
}

/* --- the kinds of sequences --- */

static struct query_panel find_projected_rows(const struct run *run,
                                              const struct sequence_position *at,
                                              size_t heads) {
    const struct plan *plan = run->plan;
    size_t shared = plan->layer.shared[at->kind];
    size_t head = heads * shared / plan->layer.group, row = at->first_projected;
    /* Copies have the heads of this phase. */
    size_t key_head = plan->layer.packs ? head - run->phase.first : head;
    size_t value_head = plan->layer.packs_values ? head - run->phase.first : head;
    size_t key_word = key_head * plan->keys.head_ld + row * plan->keys.ld;

    return (struct query_panel){
        .keys = run->keys + (plan->layer.keys_in_bf16 ? key_word / 2 : key_word),
        .keys_ld = plan->keys.ld,
        .values = run->values + value_head * plan->values.head_ld +
                  at->first_value * plan->values.ld,
        .values_ld = plan->values.ld,
        .keys_in_panels = plan->layer.key_panels,
        .keys_in_bf16 = plan->layer.keys_in_bf16,
    };
}

static struct query_panel find_request_rows(const struct run *run,
                                            const struct sequence_position *at,
                                            size_t heads) {
    const attn_model_info *info = &run->model->info;

    (void)heads;
    return (struct query_panel){
        .keys = run->request->keys + at->first_key * info->width.key,
        .keys_ld = info->width.key,
        .values = run->request->values + at->first_key * info->width.value,
        .values_ld = info->width.value,
    };
}

/* The queries of one head, whose outputs may overwrite them. */
static void describe_head(const struct panel_work *work, struct query_panel *panel) {
    const struct run *run = work->run;
    const struct plan *plan = run->plan;
    size_t head = work->heads, row = work->at.first_query + work_first(work);
    size_t size = panel->score_size, head_size = run->model->info.width.head;

    panel->queries = run->queries + row * plan->layer.score_width + head * size;
    panel->queries_ld = plan->layer.score_width;
    panel->outputs = run->context + row * plan->layer.hidden + head * head_size;
    panel->outputs_ld = plan->layer.hidden;
    panel->factor = plan->layer.sums ? mask_head_factor(run->request, head) : 0.0F;
    panel->head_size = panel->factor != 0.0F ? head_size : 0;
}

/* The queries of a group of heads, which are gathered. Their outputs overwrite them, and
 * may be wider. */
static void describe_group(const struct panel_work *work, struct query_panel *panel) {
    const struct run *run = work->run;
    size_t size = panel->score_size, width = run->plan->layer.score_width;
    size_t head_size = run->model->info.width.head, ld = size_max(size, head_size);
    float *rows = run_thread(run, work->thread, run->thread.queries);

    for (size_t c = 0; c < work->num_queries; c++) {
        size_t row = work->at.first_query + work->row_queries[c];
        memcpy(rows + c * ld, run->queries + row * width + work->row_heads[c] * size,
               size * sizeof *rows);
    }
    panel->queries = panel->outputs = rows;
    panel->queries_ld = panel->outputs_ld = ld;
    panel->head_size =
        ranges_find(run->summed_keys, work->heads) != SIZE_MAX ? head_size : 0;
    panel->factor = 1.0F;
}

/* The rows of a direct sequence. Their outputs are not final, so they are not multiplied
 * by the factors of their heads. */
static void describe_direct(const struct panel_work *work, struct query_panel *panel) {
    const struct run *run = work->run;
    size_t row = work->at.first_direct + work_first(work);

    panel->outputs = run->direct + row * run->plan->scratch.direct_ld;
    panel->queries = panel->outputs;
    panel->outputs_ld = panel->queries_ld = run->plan->scratch.direct_ld;
    panel->score_size = run->model->info.width.key;
    panel->head_size = run->plan->layer.sums ? run->model->info.width.value : 0;
    panel->factor = 1.0F;
}

/* Returns the product of a row's query and the key's bias; see plan_find_kind(). */
static double find_missing_score(const struct panel_work *work, size_t c) {
    const struct run *run = work->run;
    const struct engine *engine = &run->model->engine;
    size_t first = work->row_heads[c] * engine->score_size;
    size_t row = work->at.first_query + work->row_queries[c];
    const float *query = run->queries + row * run->plan->layer.score_width + first;
    double sum = 0;

    for (size_t d = 0; d < engine->score_size; d++)
        sum +=
            (double)query[d] * (double)engine->linears[ATTN_KEY].panels.bias[first + d];
    return sum * run->model->info.score.scale;
}

const struct work_kind *work_find_kind(const struct sequence_position *at) {
    static const struct work_kind kinds[] = {
        [SEQUENCE_HEADWISE] = {true, false, find_projected_rows, describe_head, NULL},
        [SEQUENCE_GROUPED] = {true, true, find_projected_rows, describe_group, NULL},
        [SEQUENCE_DIRECT] = {false, false, find_request_rows, describe_direct,
                             find_missing_score},
    };
    return &kinds[at->kind];
}

struct query_panel work_describe(const struct panel_work *work,
                                 const struct query_panel *rows) {
    const struct run *run = work->run;
    const attn_model_info *info = &run->model->info;
    struct query_panel panel = *rows;

    panel.num_queries = work->num_queries;
    panel.key_len = work->mask->key_len;
    panel.end_keys = work->end_keys;
    panel.first_keys = work->first_keys;
    panel.uniform = work->uniform;
    panel.additive_score = run->model->engine.additive_score;
    panel.score_size = run->model->engine.score_size;
    panel.scale = (float)info->score.scale;
    panel.softcap = (float)info->score.softcap;
    panel.weights = work->weighs ? work->weights : NULL;
    panel.position = (ptrdiff_t)work_first(work);
    panel.scratch = run_thread(run, work->thread, run->thread.kernels);
    if (run->panel_sums != NULL)
        panel.to_mark = run->to_mark + work->at.first_key;
    if (run->ids != NULL && tokens_are_shared(run->request, &work->at))
        panel.ids = run->ids + work->at.first_key;
    work->kind->describe(work, &panel);
    return panel;
}

struct row_outputs work_outputs(const struct panel_work *work,
                                const struct query_panel *panel, size_t c) {
    const struct run *run = work->run;
    size_t row = work->at.first_query + work->row_queries[c], head = work->row_heads[c];

    if (!work->kind->gathers)
        return (struct row_outputs){panel->outputs + c * panel->outputs_ld,
                                    panel->factor};
    return (struct row_outputs){
        run->context + row * run->plan->layer.hidden + head * run->model->info.width.head,
        run->plan->layer.sums ? mask_head_factor(run->request, head) : 0.0F};
}
