/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c: the list of a run's arrays in scratch memory, with what each is sized by.
 * Arrays are laid out with the plan, and run_init() points to them. */
#include "math/run/run.h"

#include "base/error.h"
#include "base/size.h"
#include "math/plan/rules.h"
#include "math/reserve.h"
#include "math/rows/rotate.h"

#include <string.h>

#define FLOATS(type) (sizeof(type) / sizeof(float))
#define AT(array)    offsetof(struct run, array)

/* Memory that arrays are taken of, one after the other. */
struct layout {
    struct plan_arrays *arrays;
    size_t floats; /* that are taken; SIZE_MAX: more than fit */
};

/* Takes `count` arrays [rows, width] of floats; none where a condition is false. A member
 * of struct run shall point to the first. */
static void take(struct layout *layout, size_t member, size_t count, size_t rows,
                 size_t width) {
    size_t index = layout->arrays->count++;

    layout->arrays->items[index].member = member;
    if (!reserve_floats(&layout->floats, size_product(count, rows), width,
                        &layout->arrays->items[index].first))
        layout->floats = SIZE_MAX;
}

/* Returns the numbers of the widest row that is projected. */
static size_t find_widest(const attn_model_info *info, const struct plan_layer *layer) {
    size_t widest = size_max(info->width.key, info->width.value);

    widest = size_max(widest, size_max(info->latent.query, info->latent.key));
    return size_max(widest, size_max(info->width.query, layer->hidden));
}

/* Takes what queries, keys and values are projected from. */
static void take_inputs(const struct plan *plan, struct layout *layout) {
    const attn_model_info *info = &plan->model->info;
    const struct engine *engine = &plan->model->engine;
    size_t queries = plan->batch.num_queries, keys = plan->batch.projected_keys;
    if (plan->request->need_projections)
        keys = plan->batch.num_keys;
    size_t converted = size_min(size_max(queries, keys),
                                plan_converted_rows(plan, engine->kernels->strip_rows));
    size_t normed = size_product(plan->layer.norms_keys ? keys : 0,
                                 size_max(info->width.key, info->width.value));
    size_t latents = size_product(keys, info->latent.key);

    normed = size_max(normed, size_product(queries, info->width.query));
    latents = size_max(latents, size_product(queries, info->latent.query));
    take(layout, AT(converted), engine_converts(engine), converted,
         plan_converted_ld(engine->kernels, find_widest(info, &plan->layer)));
    take(layout, AT(normed), info->pre_norm.applied, normed, 1);
    take(layout, AT(latents), 1, latents, 1);
    if (plan->scratch.num_rotations > 0)
        take(layout, AT(rotations), plan->scratch.num_rotations, (size_t)2 * ROTATE_STEP,
             info->rotation.size);
}

/* Takes what is projected, or copied by phases. */
static void take_projected(const struct plan *plan, struct layout *layout) {
    const attn_model *model = plan->model;
    const struct plan_layer *layer = &plan->layer;
    const struct plan_batch *batch = &plan->batch;
    bool given = model->info.projection.given;
    size_t key_width = layer->key_width, value_width = layer->value_width, keys;

    if (layer->packs)
        key_width = layer->phase_heads * model->engine.score_size;
    if (layer->packs_values)
        value_width = layer->phase_heads * model->info.width.head;
    if (layer->key_panels && !layer->finishes)
        key_width /= model->engine.kernels->k_step;
    take(layout, AT(queries), !given, plan->batch.num_queries, layer->score_width);
    keys = size_product(!given || layer->packs ? batch->projected_keys : 0, key_width);
    if (layer->key_panels)
        size_add_saturating(&keys, KEY_BLOCK); /* kernels may read past keys */
    take(layout, AT(keys), 1, keys, 1);
    take(layout, AT(values), !given || layer->packs_values, batch->value_rows,
         value_width);
    if (model->engine.kernels->k_step > 1)
        take(layout, AT(value_rows), layer->finishes_values, batch->projected_keys,
             layer->value_width);
}

/* Takes what the attention makes on the way to the outputs. */
static void take_outputs(const struct plan *plan, struct layout *layout) {
    const attn_model_info *info = &plan->model->info;
    size_t queries = plan->batch.num_queries, hidden = plan->layer.hidden;

    take(layout, AT(direct), 1, plan->batch.direct_rows, plan->scratch.direct_ld);
    take(layout, AT(gates), plan->layer.gates, queries, hidden);
    /* Others overwrite the queries. */
    if (!info->projection.given && !plan->layer.sums_in_result &&
        plan->model->engine.score_size != info->width.head)
        take(layout, AT(context), 1, queries, hidden);
}

/* Takes where sequences, heads and rows are. */
static void take_places(const struct plan *plan, struct layout *layout) {
    size_t sequences = plan->request->num_sequences, heads = plan->model->info.num_heads;

    take(layout, AT(ranges), PLAN_RANGES, PLAN_RANGES_MAX(heads), FLOATS(struct range));
    take(layout, AT(first_items), 1, sequences + 1, FLOATS(size_t));
    take(layout, AT(sequences), 1, sequences, FLOATS(struct sequence_position));
    if (!plan_wants(plan, RESULT_BY_ROW))
        return;
    take(layout, AT(head_indices), 1, heads, 1);
    take(layout, AT(query_indices), 2, plan->batch.longest_query_len, 1);
}

/* Takes what weights are summed up in, and what is made of heads. */
static void take_sums(const struct plan *plan, struct layout *layout) {
    const struct plan_scratch *scratch = &plan->scratch;
    size_t heads = plan->model->info.num_heads, panels = plan->batch.num_panels;
    size_t sums = plan->batch.results[RESULT_RECEIVED], out = plan->model->info.width.out;
    size_t of_row = plan->wanted.num_selected * out;
    size_t contributing =
        of_row > 0 ? plan->batch.results[RESULT_CONTRIBUTIONS] / of_row : 0;

    size_add_saturating(&sums, plan->batch.results[RESULT_BLOCK_WEIGHTS]);
    take(layout, AT(received), 1, sums, FLOATS(double));
    take(layout, AT(one_head), 1, contributing, plan->layer.hidden);
    take(layout, AT(no_bias), plan->request->need_contributions, 1,
         out + KERNEL_COLUMNS_MAX);
    take(layout, AT(partials), 1, scratch->num_partials, scratch->partial_floats);
    take(layout, AT(shared_weights), scratch->shared_panels, plan->batch.panel_rows,
         plan_weights_ld(plan->batch.longest_key_len));
    if (plan->kind != PLAN_HEADS)
        return;
    take(layout, AT(panel_sums), panels, heads, FLOATS(attn_head_sums));
    take(layout, AT(even_sums), 1, panels, FLOATS(attn_head_sums));
    take(layout, AT(to_mark), 1, plan->batch.num_keys, 1);
    if (plan->request->reduce.token_ids != NULL)
        take(layout, AT(ids), 1, plan->batch.num_keys, 1);
    take(layout, AT(id_places), 1, plan->batch.num_queries / sizeof(float) + 1, 1);
    take(layout, AT(rest_logs), 1, plan->batch.num_queries, 1);
    take(layout, AT(strip_products), scratch->num_strips * FLOATS(double), heads + 1,
         heads + 1);
}

/* Takes what a thread attends with. */
static void take_of_attention(const struct plan *plan, struct layout *layout) {
    const attn_model_info *info = &plan->model->info;
    const attn_request *request = plan->request;
    const struct plan_batch *batch = &plan->batch;
    bool heads = plan->kind == PLAN_HEADS, weighs = plan_wants(plan, RESULT_WEIGHED);
    bool one_by_one = weighs && request->need_weights != ATTN_WEIGHTS_ALL;
    bool biased = info->score.bias != ATTN_BIAS_NONE || request->key_positions != NULL ||
                  request->bias != NULL;
    size_t score_size = plan->model->engine.score_size, rows = batch->panel_rows;
    size_t longest = batch->longest_key_len, keys = size_min(longest, KERNEL_CHUNK_KEYS);
    size_t chunks = plan->scratch.max_chunks;
    size_t kernels = kernel_scratch_bytes(batch->score_size, batch->result_size, keys,
                                          heads || weighs);
    size_t bias_keys = keys + KERNEL_COLUMNS_MAX - 1;

    bias_keys -= bias_keys % KERNEL_COLUMNS_MAX;
    take(layout, AT(thread.kernels), 1, kernels / sizeof(float), 1);
    take(layout, AT(thread.total), chunks > 1, 2 * rows, batch->result_size + 1);
    take(layout, AT(thread.chunks), chunks > 1, chunks,
         2 * rows + (heads ? FLOATS(struct panel_sums) : 0));
    take(layout, AT(thread.queries), batch->grouped, rows,
         size_max(score_size, info->width.head));
    /* A tile [keys, columns] in either layout, and a line of keys + columns - 1. */
    take(layout, AT(thread.bias), biased, bias_keys + 1, KERNEL_COLUMNS_MAX + 1);
    take(layout, AT(thread.positions), info->score.position_rows > 0, KERNEL_FEW_MAX,
         2 * info->score.position_rows + score_size);
    take(layout, AT(thread.weights), one_by_one, plan_weights_ld(longest), rows);
    take(layout, AT(thread.top), 1, request->reduce.top_k, REDUCE_TOP_FLOATS);
    take(layout, AT(thread.prefix), plan_sums_prefixes(request), longest + 1,
         FLOATS(double));
    take(layout, AT(thread.gathered), 1, plan->scratch.gather_keys,
         score_size + info->width.head);
}

/* Takes the arrays of all threads, of which each step takes the same memory. */
static void take_threads(const struct plan *plan, struct layout *layout) {
    const attn_model_info *info = &plan->model->info;
    struct layout attention = *layout, rows = *layout, sums = *layout, parts = *layout;
    size_t angles = model_has_sections(info) ? ATTN_AXES + 1 : 1;
    size_t heads = plan->kind == PLAN_HEADS ? info->num_heads : 0;
    bool finishes = plan->layer.finishes;

    take_of_attention(plan, &attention);
    take(&rows, AT(thread.rotation), finishes, info->rotation.size / 2,
         angles * ROTATE_FLOATS((size_t)1) + 2);
    take(&rows, AT(thread.tile), finishes || plan->layer.packs, KEY_BLOCK,
         plan->model->engine.score_size);
    take(&sums, AT(thread.sums), plan->batch.num_direct > 0, PLAN_DIRECT_ROWS,
         info->width.head + (size_t)2 * KERNEL_COLUMNS_MAX);
    take(&parts, AT(thread.inputs), heads, PLAN_HEAD_ROWS, plan->scratch.head_ld);
    take(&parts, AT(thread.parts), heads > 0 ? heads + 1 : 0, PLAN_HEAD_ROWS,
         plan->model->engine.kernels->columns);

    size_t end = size_max(size_max(attention.floats, rows.floats),
                          size_max(sums.floats, parts.floats));
    size_t first, floats = end - layout->floats;
    layout->arrays->thread_floats = floats;
    if (!reserve_floats(&layout->floats, plan->num_threads, floats, &first))
        layout->floats = SIZE_MAX;
}

/* Lays out all arrays of a run. Returns their bytes; SIZE_MAX: more than fit. */
static size_t lay_out(const struct plan *plan, struct plan_arrays *ret_arrays) {
    struct layout layout = {ret_arrays, 0};
    size_t bytes;

    ret_arrays->count = 0;
    take_inputs(plan, &layout);
    take_projected(plan, &layout);
    take_outputs(plan, &layout);
    take_places(plan, &layout);
    take_sums(plan, &layout);
    take_threads(plan, &layout);
    return size_mul(layout.floats, sizeof(float), &bytes) ? bytes : SIZE_MAX;
}

_Static_assert(sizeof(struct plan) <= ATTN_PLAN_WORDS * sizeof(size_t),
               "attn_sizes has room for a plan");

attn_status run_plan(const attn_model *model, const attn_request *request,
                     enum plan_kind kind, attn_sizes *ret_sizes, attn_error *ret_error) {
    struct plan plan;
    attn_status status = plan_make(model, request, kind, &plan, ret_error);

    if (status != ATTN_OK)
        return status;
    size_t bytes = lay_out(&plan, &plan.arrays);
    if (bytes == SIZE_MAX)
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");

    *ret_sizes = (attn_sizes){.num_queries = plan.batch.num_queries,
                              .num_keys = plan.batch.num_keys,
                              .scratch_bytes = bytes,
                              .flops = plan.flops.all};
    for (enum result_id id = 0; id < NUM_RESULTS; id++)
        result_set_count(ret_sizes, id, plan.batch.results[id]);
    memcpy(ret_sizes->plan, &plan, sizeof plan);
    return ATTN_OK;
}
