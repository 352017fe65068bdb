/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c: the list of a run's arrays in scratch memory. They are taken twice: without
 * memory, to measure them, and where they are. */
#include "math/run/run.h"

#include "base/error.h"
#include "base/size.h"
#include "math/plan/rules.h"
#include "math/reserve.h"
#include "math/rows/rotate.h"

#include <string.h>

#define FLOATS(type) (sizeof(type) / sizeof(float))

/* Takes `count` arrays [rows, width] of floats; none where a condition is false. */
static void *take(struct reserve *block, size_t count, size_t rows, size_t width) {
    return reserve_take(block, size_product(count, rows), width);
}

/* Returns the numbers of the widest row that is projected. */
static size_t find_widest(const attn_model_info *info, const struct plan_layer *layer) {
    size_t widest = size_max(info->width.key, info->width.value);

    widest = size_max(widest, size_max(info->latent.query, info->latent.key));
    return size_max(widest, size_max(info->width.query, layer->hidden));
}

/* Takes what queries, keys and values are projected from. */
static void take_inputs(struct run *run, struct reserve *block) {
    const attn_model_info *info = &run->model->info;
    const struct plan *plan = run->plan;
    const struct engine *engine = &run->model->engine;
    size_t queries = plan->batch.num_queries, keys = plan->batch.projected_keys;
    size_t converted = size_min(size_max(queries, keys),
                                plan_converted_rows(plan, engine->kernels->strip_rows));
    size_t normed = size_product(plan->layer.norms_keys ? keys : 0,
                                 size_max(info->width.key, info->width.value));
    size_t latents = size_product(keys, info->latent.key);

    normed = size_max(normed, size_product(queries, info->width.query));
    latents = size_max(latents, size_product(queries, info->latent.query));
    run->converted =
        take(block, engine_converts(engine), converted,
             plan_converted_ld(engine->kernels, find_widest(info, &plan->layer)));
    run->normed = take(block, info->pre_norm.applied, normed, 1);
    run->latents = take(block, 1, latents, 1);
    run->rotations = take(block, plan->scratch.num_rotations, (size_t)2 * ROTATE_STEP,
                          info->rotation.size);
    if (plan->scratch.num_rotations == 0)
        run->rotations = NULL;
}

/* Takes what is projected, or copied by phases. */
static void take_projected(struct run *run, struct reserve *block) {
    const attn_model *model = run->model;
    const struct plan_layer *layer = &run->plan->layer;
    const struct plan_batch *batch = &run->plan->batch;
    bool given = model->info.projection.given;
    bool pairs = model->engine.kernels->k_step > 1;
    size_t key_width = layer->key_width, value_width = layer->value_width;

    if (layer->packs)
        key_width = layer->phase_heads * model->engine.score_size;
    if (layer->packs_values)
        value_width = layer->phase_heads * model->info.width.head;
    if (layer->key_panels && !layer->finishes)
        key_width /= model->engine.kernels->k_step;
    run->queries = take(block, !given, run->plan->batch.num_queries, layer->score_width);
    run->keys = take(block, !given || layer->packs, batch->projected_keys, key_width);
    take(block, layer->key_panels, KEY_BLOCK, 1); /* kernels may read past keys */
    run->values =
        take(block, !given || layer->packs_values, batch->value_rows, value_width);
    run->value_rows = take(block, pairs && layer->finishes_values, batch->projected_keys,
                           layer->value_width);
    if (!pairs)
        run->value_rows = run->values;
}

/* Takes what the attention makes on the way to the outputs. */
static void take_outputs(struct run *run, const attn_result *result,
                         struct reserve *block) {
    const attn_model_info *info = &run->model->info;
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    size_t queries = plan->batch.num_queries, hidden = plan->layer.hidden;
    /* The heads' outputs may overwrite the queries, or be a result themselves. */
    bool in_outputs = !request->omit_outputs && !info->linears[ATTN_OUTPUT].weight;
    bool in_result = plan->kind != PLAN_HEADS && (request->need_heads || in_outputs);
    bool own = !info->projection.given && !in_result &&
               run->model->engine.score_size != info->width.head;

    run->direct = take(block, 1, plan->batch.direct_rows, plan->scratch.direct_ld);
    run->gates = take(block, plan->layer.gates, queries, hidden);
    run->context = take(block, own, queries, hidden);
    if (!own)
        run->context = run->queries;
    if (in_result)
        run->context = request->need_heads ? result->heads : result->outputs;
}

/* Takes where sequences, heads and rows are. */
static void take_places(struct run *run, struct reserve *block) {
    size_t sequences = run->request->num_sequences, heads = run->model->info.num_heads;
    bool rows = plan_wants(run->plan, RESULT_BY_ROW);

    run->ranges = take(block, PLAN_RANGES, PLAN_RANGES_MAX(heads), FLOATS(struct range));
    run->first_items = take(block, 1, sequences + 1, FLOATS(size_t));
    run->sequences = take(block, 1, sequences, FLOATS(struct sequence_position));
    run->head_indices = take(block, rows, heads, 1);
    run->query_indices = take(block, rows, run->plan->batch.longest_query_len, 2);
}

/* Takes what weights are summed up in, and what is made of heads. */
static void take_sums(struct run *run, struct reserve *block) {
    const struct plan *plan = run->plan;
    const struct plan_scratch *scratch = &plan->scratch;
    size_t heads = run->model->info.num_heads, panels = plan->batch.num_panels;
    size_t sums = plan->batch.results[RESULT_RECEIVED], out = run->model->info.width.out;
    size_t of_row = plan->wanted.num_selected * out;
    size_t contributing =
        of_row > 0 ? plan->batch.results[RESULT_CONTRIBUTIONS] / of_row : 0;

    size_add_saturating(&sums, plan->batch.results[RESULT_BLOCK_WEIGHTS]);
    run->received = take(block, 1, sums, FLOATS(double));
    run->one_head = take(block, 1, contributing, plan->layer.hidden);
    run->no_bias =
        take(block, run->request->need_contributions, 1, out + KERNEL_COLUMNS_MAX);
    run->partials = take(block, 1, scratch->num_partials, scratch->partial_floats);
    run->shared_weights = take(block, scratch->shared_panels, plan->batch.panel_rows,
                               plan_weights_ld(plan->batch.longest_key_len));
    if (plan->kind != PLAN_HEADS)
        return;
    run->panel_sums = take(block, panels, heads, FLOATS(attn_head_sums));
    run->even_sums = take(block, 1, panels, FLOATS(attn_head_sums));
    run->strip_products =
        take(block, scratch->num_strips * FLOATS(double), heads + 1, heads + 1);
}

/* Takes what a thread attends with. */
static void take_of_attention(struct run *run, struct reserve *block) {
    const attn_model_info *info = &run->model->info;
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    const struct plan_batch *batch = &plan->batch;
    struct run_thread *thread = &run->thread;
    bool heads = plan->kind == PLAN_HEADS, weighs = plan_wants(plan, RESULT_WEIGHED);
    bool one_by_one = weighs && request->need_weights != ATTN_WEIGHTS_ALL;
    bool biased = info->score.bias != ATTN_BIAS_NONE || request->key_positions != NULL ||
                  request->bias != NULL;
    size_t score_size = run->model->engine.score_size, rows = batch->panel_rows;
    size_t longest = batch->longest_key_len, keys = size_min(longest, KERNEL_CHUNK_KEYS);
    size_t chunks = plan->scratch.max_chunks;
    size_t kernels = kernel_scratch_bytes(batch->score_size, batch->result_size, keys,
                                          heads || weighs);
    size_t bias_keys = keys + KERNEL_COLUMNS_MAX - 1;

    bias_keys -= bias_keys % KERNEL_COLUMNS_MAX;
    thread->kernels = take(block, 1, kernels / sizeof(float), 1);
    thread->total = take(block, chunks > 1, 2 * rows, batch->result_size + 1);
    thread->chunks = take(block, chunks > 1, chunks,
                          2 * rows + (heads ? FLOATS(struct panel_sums) : 0));
    thread->queries =
        take(block, batch->grouped, rows, size_max(score_size, info->width.head));
    /* A tile [keys, columns] in either layout, and a line of keys + columns - 1. */
    thread->bias = take(block, biased, bias_keys + 1, KERNEL_COLUMNS_MAX + 1);
    thread->positions = take(block, info->score.position_rows > 0, KERNEL_FEW_MAX,
                             2 * info->score.position_rows + score_size);
    thread->weights = take(block, one_by_one, plan_weights_ld(longest), rows);
    thread->top = take(block, 1, request->reduce.top_k, REDUCE_TOP_FLOATS);
    thread->prefix =
        take(block, plan_sums_prefixes(request), longest + 1, FLOATS(double));
    thread->gathered =
        take(block, 1, plan->scratch.gather_keys, score_size + info->width.head);
}

/* Takes the arrays of one thread, of which each step takes the same memory. Returns the
 * floats of the step that has most. */
static size_t take_thread(struct run *run, float *memory) {
    const attn_model_info *info = &run->model->info;
    const struct plan *plan = run->plan;
    struct run_thread *thread = &run->thread;
    struct reserve attention = {memory, 0}, rows = attention, sums = attention,
                   parts = attention;
    size_t angles = model_has_sections(info) ? ATTN_AXES + 1 : 1;
    size_t heads = plan->kind == PLAN_HEADS ? info->num_heads : 0;
    bool finishes = plan->layer.finishes;

    take_of_attention(run, &attention);
    thread->rotation = take(&rows, finishes, info->rotation.size / 2,
                            angles * ROTATE_FLOATS((size_t)1) + 2);
    thread->tile = take(&rows, finishes || plan->layer.packs, KEY_BLOCK,
                        run->model->engine.score_size);
    thread->sums = take(&sums, plan->batch.num_direct > 0, PLAN_DIRECT_ROWS,
                        info->width.head + (size_t)2 * KERNEL_COLUMNS_MAX);
    thread->inputs = take(&parts, heads, PLAN_HEAD_ROWS, plan->scratch.head_ld);
    thread->parts = take(&parts, heads > 0 ? heads + 1 : 0, PLAN_HEAD_ROWS,
                         run->model->engine.kernels->columns);
    return size_max(size_max(attention.floats, rows.floats),
                    size_max(sums.floats, parts.floats));
}

size_t run_lay_out(struct run *run, void *scratch, const attn_result *result) {
    struct reserve block = {scratch, 0};
    size_t bytes;

    take_inputs(run, &block);
    take_projected(run, &block);
    take_outputs(run, result, &block);
    take_places(run, &block);
    take_sums(run, &block);
    run->thread_floats =
        take_thread(run, scratch != NULL ? block.memory + block.floats : NULL);
    take(&block, 1, run->plan->num_threads, run->thread_floats);
    return size_mul(block.floats, sizeof(float), &bytes) ? bytes : SIZE_MAX;
}

_Static_assert(sizeof(struct plan) <= ATTN_PLAN_WORDS * sizeof(size_t),
               "attn_sizes has room for a plan");

attn_status run_plan(const attn_model *model, const attn_request *request,
                     enum plan_kind kind, attn_sizes *ret_sizes, attn_error *ret_error) {
    struct plan plan;
    struct run run = {.model = model, .request = request, .plan = &plan};
    attn_status status = plan_make(model, request, kind, &plan, ret_error);

    if (status != ATTN_OK)
        return status;
    size_t bytes = run_lay_out(&run, NULL, &(attn_result){0});
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

struct plan run_get_plan(const attn_model *model, const attn_request *request,
                         const attn_sizes *sizes) {
    struct plan plan;

    memcpy(&plan, sizes->plan, sizeof plan);
    plan.model = model;
    plan.request = request;
    plan.wanted.info = &model->info;
    plan.wanted.request = request;
    return plan;
}
