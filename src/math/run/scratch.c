/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c: the list of a run's arrays in scratch memory, with what each is sized by.
 * Arrays are laid out with the plan, and run_init() points to them. */
#include "math/run/run.h"

#include "base/error.h"
#include "base/size.h"
#include "math/plan/rules.h"
#include "math/reserve.h"
#include "math/rows/rotate.h"

#include <assert.h>
#include <string.h>

#define FLOATS(type) (sizeof(type) / sizeof(float))
#define AT(array)    offsetof(struct run, array)

/* Memory that arrays are taken of, one after the other. */
struct layout {
    struct plan_arrays *arrays;
    size_t floats; /* that are taken; SIZE_MAX: more than fit */
};

/* `count` arrays [rows, width] of floats; a member of struct run points to the first. */
struct array {
    size_t member;
    bool taken; /* else the member is NULL */
    size_t count, rows, width;
};

/* Takes the arrays of a list, [count]. */
static void take(struct layout *layout, const struct array *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t index = layout->arrays->count;
        if (!list[i].taken)
            continue;
        assert(index < PLAN_ARRAYS_MAX);
        layout->arrays->count++;
        layout->arrays->items[index].member = list[i].member;
        if (!reserve_floats(&layout->floats, size_product(list[i].count, list[i].rows),
                            list[i].width, &layout->arrays->items[index].first))
            layout->floats = SIZE_MAX;
    }
}

#define TAKE(layout, ...)                                                                \
    take(layout, (const struct array[]){__VA_ARGS__},                                    \
         sizeof((const struct array[]){__VA_ARGS__}) / sizeof(struct array))

/* Takes what is projected, or copied by phases, and what from. */
static void take_projected(const struct plan *plan, struct layout *layout) {
    const attn_model_info *info = &plan->model->info;
    const struct engine *engine = &plan->model->engine;
    const struct plan_layer *layer = &plan->layer;
    const struct plan_batch *batch = &plan->batch;
    bool projects = !info->projection.given, wide = engine->kernels->k_step > 1;
    size_t queries = batch->num_queries, keys = batch->projected_keys;
    size_t inputs = plan->request->need_projections ? batch->num_keys : keys;
    size_t key_width = layer->key_width, value_width = layer->value_width;
    size_t widest = size_max(size_max(info->width.key, info->width.value),
                             size_max(info->latent.query, info->latent.key));
    size_t normed = size_product(layer->norms_keys ? inputs : 0,
                                 size_max(info->width.key, info->width.value));
    size_t latents = size_max(size_product(inputs, info->latent.key),
                              size_product(queries, info->latent.query));

    widest = size_max(widest, size_max(info->width.query, layer->hidden));
    normed = size_max(normed, size_product(queries, info->width.query));
    if (layer->packs)
        key_width = layer->phase_heads * engine->score_size;
    if (layer->packs_values)
        value_width = layer->phase_heads * info->width.head;
    if (layer->key_panels && !layer->finishes)
        key_width /= engine->kernels->k_step;
    size_t key_floats = size_product(projects || layer->packs ? keys : 0, key_width);
    if (layer->key_panels)
        size_add_saturating(&key_floats, KEY_BLOCK); /* kernels may read past keys */

    TAKE(layout,
         {AT(converted), true, engine_converts(engine),
          size_min(size_max(queries, inputs),
                   plan_converted_rows(plan, engine->kernels->strip_rows)),
          plan_converted_ld(engine->kernels, widest)},
         {AT(normed), true, info->pre_norm.applied, normed, 1},
         {AT(latents), true, 1, latents, 1},
         {AT(rotations), plan->scratch.num_rotations > 0, plan->scratch.num_rotations,
          (size_t)2 * ROTATE_STEP, info->rotation.size},
         {AT(queries), true, projects, queries, layer->score_width},
         {AT(keys), true, 1, key_floats, 1},
         {AT(values), true, projects || layer->packs_values, batch->value_rows,
          value_width},
         {AT(value_rows), wide, layer->finishes_values, keys, layer->value_width});
}

/* Takes what the attention makes on the way to the outputs, and what it looks up. */
static void take_outputs(const struct plan *plan, struct layout *layout) {
    const attn_model_info *info = &plan->model->info;
    const struct plan_scratch *scratch = &plan->scratch;
    const struct plan_batch *batch = &plan->batch;
    const size_t *results = batch->results;
    bool of_heads = plan->kind == PLAN_HEADS, by_row = plan_wants(plan, RESULT_BY_ROW);
    bool has_ids = of_heads && plan->request->reduce.token_ids != NULL;
    /* Others overwrite the queries. */
    bool has_context = !info->projection.given && !plan->layer.sums_in_result &&
                       plan->model->engine.score_size != info->width.head;
    size_t queries = batch->num_queries, keys = batch->num_keys;
    size_t hidden = plan->layer.hidden, heads = info->num_heads, out = info->width.out;
    size_t sequences = plan->request->num_sequences, sums = results[RESULT_RECEIVED];
    size_t of_row = plan->wanted.num_selected * out;
    size_t contributing = of_row > 0 ? results[RESULT_CONTRIBUTIONS] / of_row : 0;

    size_add_saturating(&sums, results[RESULT_BLOCK_WEIGHTS]);
    TAKE(layout, {AT(direct), true, 1, batch->direct_rows, scratch->direct_ld},
         {AT(gates), true, plan->layer.gates, queries, hidden},
         {AT(context), has_context, 1, queries, hidden},
         {AT(ranges), true, PLAN_RANGES, PLAN_RANGES_MAX(heads), FLOATS(struct range)},
         {AT(first_items), true, 1, sequences + 1, FLOATS(size_t)},
         {AT(sequences), true, 1, sequences, FLOATS(struct sequence_position)},
         {AT(head_indices), by_row, 1, heads, 1},
         {AT(query_indices), by_row, 2, batch->longest_query_len, 1},
         {AT(received), true, 1, sums, FLOATS(double)},
         {AT(one_head), true, 1, contributing, hidden},
         {AT(no_bias), of_heads || plan->request->need_contributions, 1, 1,
          out + KERNEL_COLUMNS_MAX},
         {AT(partials), true, 1, scratch->num_partials, scratch->partial_floats},
         {AT(shared_weights), true, scratch->shared_panels, batch->panel_rows,
          plan_weights_ld(batch->longest_key_len)},
         {AT(panel_sums), of_heads, batch->num_panels, heads, FLOATS(attn_head_sums)},
         {AT(even_sums), of_heads, 1, batch->num_panels, FLOATS(attn_head_sums)},
         {AT(to_mark), of_heads, 1, keys, 1}, {AT(ids), has_ids, 1, keys, 1},
         {AT(id_places), of_heads, 1, queries / sizeof(float) + 1, 1},
         {AT(rest_logs), of_heads, 1, queries, 1},
         {AT(strip_products), of_heads, scratch->num_strips * FLOATS(double), heads + 1,
          heads + 1});
}

/* Takes the arrays of all threads, of which each step takes the same memory. */
static void take_threads(const struct plan *plan, struct layout *layout) {
    const attn_model_info *info = &plan->model->info;
    const attn_request *request = plan->request;
    const struct plan_batch *batch = &plan->batch;
    const struct plan_layer *layer = &plan->layer;
    struct layout attention = *layout, rows = *layout, sums = *layout, parts = *layout;
    bool of_heads = plan->kind == PLAN_HEADS, weighs = plan_wants(plan, RESULT_WEIGHED);
    bool biased = info->score.bias != ATTN_BIAS_NONE || request->key_positions != NULL ||
                  request->bias != NULL;
    size_t score_size = plan->model->engine.score_size, head_size = info->width.head;
    size_t longest = batch->longest_key_len, keys = size_min(longest, KERNEL_CHUNK_KEYS);
    bool merges = plan->scratch.max_chunks > 1 || batch->grouped || request->need_lse ||
                  info->score.sinks; /* see chunks_attend() */
    size_t chunks = merges ? plan->scratch.max_chunks : 0;
    size_t num_rows = batch->panel_rows, heads = of_heads ? info->num_heads : 0;
    size_t kernels = kernel_scratch_bytes(batch->score_size, batch->result_size, keys,
                                          of_heads || weighs);
    size_t bias_keys = (keys - 1) / KERNEL_COLUMNS_MAX * KERNEL_COLUMNS_MAX +
                       KERNEL_COLUMNS_MAX; /* whole vectors */
    size_t angles = model_has_sections(info) ? ATTN_AXES + 1 : 1;

    TAKE(&attention, {AT(thread.kernels), true, 1, kernels / sizeof(float), 1},
         {AT(thread.total), true, merges, 2 * num_rows, batch->result_size + 1},
         {AT(thread.chunks), true, 1, chunks,
          2 * num_rows + (of_heads ? FLOATS(struct panel_sums) : 0)},
         {AT(thread.queries), true, batch->grouped, num_rows,
          size_max(score_size, head_size)},
         /* A tile [keys, columns] in either layout, and a line of keys + columns - 1. */
         {AT(thread.bias), true, biased, bias_keys + 1, KERNEL_COLUMNS_MAX + 1},
         {AT(thread.positions), true, info->score.position_rows > 0, KERNEL_FEW_MAX,
          2 * info->score.position_rows + score_size},
         {AT(thread.weights), true, weighs && request->need_weights != ATTN_WEIGHTS_ALL,
          plan_weights_ld(longest), num_rows},
         {AT(thread.top), true, 1, request->reduce.top_k, REDUCE_TOP_FLOATS},
         {AT(thread.prefix), true, plan_sums_prefixes(request), longest + 1,
          FLOATS(double)},
         {AT(thread.gathered), true, 1, plan->scratch.gather_keys,
          score_size + head_size});
    TAKE(&rows,
         {AT(thread.rotation), true, layer->finishes, info->rotation.size / 2,
          angles * ROTATE_FLOATS((size_t)1) + 2},
         {AT(thread.tile), true, layer->finishes || layer->packs, KEY_BLOCK, score_size});
    TAKE(&sums, {AT(thread.sums), true, batch->num_direct > 0, PLAN_DIRECT_ROWS,
                 head_size + (size_t)2 * KERNEL_COLUMNS_MAX});
    TAKE(&parts, {AT(thread.inputs), true, heads, PLAN_HEAD_ROWS, plan->scratch.head_ld},
         {AT(thread.parts), true, heads > 0 ? heads + 1 : 0, PLAN_HEAD_ROWS,
          plan->model->engine.kernels->columns});

    size_t first, end = size_max(size_max(attention.floats, rows.floats),
                                 size_max(sums.floats, parts.floats));
    layout->arrays->thread_floats = end - layout->floats;
    if (!reserve_floats(&layout->floats, plan->num_threads, end - layout->floats, &first))
        layout->floats = SIZE_MAX;
}

/* Lays out all arrays of a run. Returns their bytes; SIZE_MAX: more than fit. */
static size_t lay_out(const struct plan *plan, struct plan_arrays *ret_arrays) {
    struct layout layout = {ret_arrays, 0};
    size_t bytes;

    ret_arrays->count = 0;
    take_projected(plan, &layout);
    take_outputs(plan, &layout);
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
