/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c: the list of a run's arrays in scratch memory. They are taken twice: without
 * memory, to measure them, and where they are. */
#include "math/run/run.h"

#include "base/error.h"
#include "base/size.h"
#include "math/plan/rules.h"
#include "math/reserve.h"
#include "math/rows/rotate.h"

#define FLOATS(type) (sizeof(type) / sizeof(float))

/* Returns the numbers of the largest input that is normed before the layer. */
static size_t count_normed(const attn_model_info *info, const struct plan *plan) {
    size_t widest = size_max(info->width.key, info->width.value);
    size_t keys = plan->layer.norms_keys ? plan->batch.projected_keys : 0;

    if (!info->pre_norm.applied)
        return 0;
    return size_max(size_product(plan->sizes.num_queries, info->width.query),
                    size_product(keys, widest));
}

/* Returns the numbers of the latent rows of an input, at most. */
static size_t count_latents(const attn_model_info *info, const struct plan *plan) {
    return size_max(size_product(plan->sizes.num_queries, info->latent.query),
                    size_product(plan->batch.projected_keys, info->latent.key));
}

/* Returns the words of keys that are projected or copied. */
static size_t count_keys(const attn_model *model, const struct plan *plan) {
    const struct plan_layer *layer = &plan->layer;
    bool in_words = layer->key_panels && !layer->finishes;
    size_t width =
        layer->packs ? layer->phase_heads * model->engine.score_size : layer->key_width;

    if (model->info.projection.given && !layer->packs)
        return 0;
    return size_product(plan->batch.projected_keys,
                        width / (in_words ? model->engine.kernels->k_step : 1));
}

/* The same of values. */
static size_t count_values(const attn_model *model, const struct plan *plan) {
    const struct plan_layer *layer = &plan->layer;
    size_t width = layer->packs_values ? layer->phase_heads * model->info.width.head
                                       : layer->value_width;

    if (model->info.projection.given && !layer->packs_values)
        return 0;
    return size_product(plan->batch.value_rows, width);
}

/* Returns the numbers of the widest row that is projected. */
static size_t find_widest(const attn_model_info *info, const struct plan_layer *layer) {
    size_t widest = size_max(info->width.key, info->width.value);

    widest = size_max(widest, size_max(info->latent.query, info->latent.key));
    return size_max(widest, size_max(info->width.query, layer->hidden));
}

/* Returns the rows of values that are finished before they become pairs. */
static size_t count_value_rows(const attn_model *model, const struct plan *plan) {
    bool pairs = model->engine.kernels->k_step > 1;
    return pairs && plan->layer.finishes_values ? plan->batch.projected_keys : 0;
}

/* Takes what is projected, and what that is made from. */
static void take_inputs(struct run *run, struct reserve *block) {
    const attn_model_info *info = &run->model->info;
    const struct plan *plan = run->plan;
    const struct plan_layer *layer = &plan->layer;
    const struct engine *engine = &run->model->engine;
    size_t queries = plan->sizes.num_queries, rotations = plan->scratch.num_rotations;
    size_t converted = size_min(size_max(queries, plan->batch.projected_keys),
                                plan_converted_rows(plan, engine->kernels->strip_rows));

    run->converted =
        reserve_take(block, engine_converts(engine) ? converted : 0,
                     plan_converted_ld(engine->kernels, find_widest(info, layer)));
    run->normed = reserve_take(block, count_normed(info, plan), 1);
    run->latents = reserve_take(block, count_latents(info, plan), 1);
    run->rotations =
        reserve_take(block, rotations * ROTATE_STEP * 2, info->rotation.size);
    if (rotations == 0)
        run->rotations = NULL;
    run->queries =
        reserve_take(block, info->projection.given ? 0 : queries, layer->score_width);
    run->keys = reserve_take(block, count_keys(run->model, plan), 1);
    reserve_take(block, layer->key_panels ? KEY_BLOCK : 0, 1); /* kernels may read it */
    run->values = reserve_take(block, count_values(run->model, plan), 1);
    run->value_rows =
        reserve_take(block, count_value_rows(run->model, plan), layer->value_width);
    if (engine->kernels->k_step == 1)
        run->value_rows = run->values;
}

/* Takes what the attention makes on the way to the outputs. */
static void take_outputs(struct run *run, const attn_result *result,
                         struct reserve *block) {
    const attn_model_info *info = &run->model->info;
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    size_t queries = plan->sizes.num_queries;
    /* The heads' outputs may overwrite the queries, or be a result themselves. */
    bool in_outputs = !request->omit_outputs && !info->linears[ATTN_OUTPUT].weight;
    bool in_result = plan->kind != PLAN_HEADS && (request->need_heads || in_outputs);
    bool own = !info->projection.given && !in_result &&
               run->model->engine.score_size != info->width.head;

    run->direct = reserve_take(block, plan->batch.direct_rows, plan->scratch.direct_ld);
    run->gates = reserve_take(block, plan->layer.gates ? queries : 0, plan->layer.hidden);
    run->context = reserve_take(block, own ? queries : 0, plan->layer.hidden);
    if (!own)
        run->context = run->queries;
    if (in_result)
        run->context = request->need_heads ? result->heads : result->outputs;
}

/* Takes where sequences, heads and rows are. */
static void take_places(struct run *run, struct reserve *block) {
    const attn_request *request = run->request;
    size_t heads = run->model->info.num_heads,
           longest = run->plan->batch.longest_query_len;
    bool rows = plan_wants(run->plan, RESULT_BY_ROW);

    run->ranges =
        reserve_take(block, PLAN_RANGES * PLAN_RANGES_MAX(heads), FLOATS(struct range));
    run->first_items = reserve_take(block, request->num_sequences + 1, FLOATS(size_t));
    run->sequences =
        reserve_take(block, request->num_sequences, FLOATS(struct sequence_position));
    run->head_indices = reserve_take(block, rows ? heads : 0, 1);
    run->query_indices = reserve_take(block, rows ? longest : 0, 2);
}

/* Takes what weights are summed up in, and what is made of heads. */
static void take_sums(struct run *run, struct reserve *block) {
    const struct plan *plan = run->plan;
    const struct plan_scratch *scratch = &plan->scratch;
    size_t heads = run->model->info.num_heads, panels = plan->batch.num_panels;
    size_t rows = plan->batch.panel_rows, strips = scratch->num_strips * FLOATS(double);
    size_t sums = plan->sizes.received, out = plan->wanted.info->width.out;
    size_t contributing = plan->wanted.num_selected * out;

    size_add_saturating(&sums, plan->sizes.block_weights);
    if (contributing > 0)
        contributing = plan->sizes.contributions / contributing; /* rows of each head */
    run->received = reserve_take(block, sums, FLOATS(double));
    run->one_head = reserve_take(block, contributing, plan->layer.hidden);
    run->no_bias =
        reserve_take(block, run->request->need_contributions, out + KERNEL_COLUMNS_MAX);
    run->partials = reserve_take(block, scratch->num_partials, scratch->partial_floats);
    run->shared_weights = reserve_take(block, size_product(scratch->shared_panels, rows),
                                       plan_weights_ld(plan->batch.longest_key_len));
    if (plan->kind != PLAN_HEADS)
        return;
    run->panel_sums =
        reserve_take(block, size_product(panels, heads), FLOATS(attn_head_sums));
    run->even_sums = reserve_take(block, panels, FLOATS(attn_head_sums));
    run->strip_products = reserve_take(block, size_product(strips, heads + 1), heads + 1);
}

/* Takes what a thread attends with. */
static void take_of_attention(struct run *run, struct reserve *block) {
    const attn_model_info *info = &run->model->info;
    const attn_request *request = run->request;
    const struct plan_batch *batch = &run->plan->batch;
    struct run_thread *thread = &run->thread;
    bool heads = run->plan->kind == PLAN_HEADS;
    bool biased = info->score.bias != ATTN_BIAS_NONE || request->key_positions != NULL ||
                  request->bias != NULL;
    bool weighs = plan_wants(run->plan, RESULT_WEIGHED);
    bool one_by_one = weighs && request->need_weights != ATTN_WEIGHTS_ALL;
    size_t score_size = run->model->engine.score_size, rows = batch->panel_rows;
    size_t longest = batch->longest_key_len, keys = size_min(longest, KERNEL_CHUNK_KEYS);
    size_t chunks = run->plan->scratch.max_chunks > 1 ? run->plan->scratch.max_chunks : 0;
    size_t of_chunk = 2 * rows + (heads ? FLOATS(struct panel_sums) : 0);
    size_t kernels = kernel_scratch_bytes(batch->score_size, batch->result_size, keys,
                                          heads || weighs);
    size_t bias_keys = keys + KERNEL_COLUMNS_MAX - 1;

    bias_keys -= bias_keys % KERNEL_COLUMNS_MAX;
    thread->kernels = reserve_take(block, kernels / sizeof(float), 1);
    thread->total =
        reserve_take(block, chunks > 0 ? 2 * rows : 0, batch->result_size + 1);
    thread->chunks = reserve_take(block, chunks, of_chunk);
    thread->queries = reserve_take(block, batch->grouped ? rows : 0,
                                   size_max(score_size, info->width.head));
    /* A tile [keys, columns] in either layout, and a line of keys + columns - 1. */
    thread->bias =
        reserve_take(block, biased ? bias_keys + 1 : 0, KERNEL_COLUMNS_MAX + 1);
    thread->weights =
        reserve_take(block, one_by_one ? plan_weights_ld(longest) : 0, rows);
    thread->top = reserve_take(block, request->reduce.top_k, REDUCE_TOP_FLOATS);
    thread->prefix = reserve_take(block, plan_sums_prefixes(request) ? longest + 1 : 0,
                                  FLOATS(double));
    thread->gathered = reserve_take(block, run->plan->scratch.gather_keys,
                                    score_size + info->width.head);
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
    thread->rotation = reserve_take(&rows, finishes ? info->rotation.size / 2 : 0,
                                    angles * ROTATE_FLOATS((size_t)1) + 2);
    thread->tile = reserve_take(&rows, finishes || plan->layer.packs ? KEY_BLOCK : 0,
                                run->model->engine.score_size);
    thread->sums = reserve_take(&sums, plan->batch.num_direct > 0 ? PLAN_DIRECT_ROWS : 0,
                                info->width.head + (size_t)2 * KERNEL_COLUMNS_MAX);
    thread->inputs =
        reserve_take(&parts, size_product(heads, PLAN_HEAD_ROWS), plan->scratch.head_ld);
    thread->parts =
        reserve_take(&parts, heads > 0 ? size_product(heads + 1, PLAN_HEAD_ROWS) : 0,
                     run->model->engine.kernels->columns);
    return size_max(size_max(attention.floats, rows.floats),
                    size_max(sums.floats, parts.floats));
}

size_t run_lay_out(struct run *run, void *scratch, const attn_result *result) {
    struct reserve block = {scratch, 0};
    size_t bytes;

    take_inputs(run, &block);
    take_outputs(run, result, &block);
    take_places(run, &block);
    take_sums(run, &block);
    run->thread_floats =
        take_thread(run, scratch != NULL ? block.memory + block.floats : NULL);
    reserve_take(&block, run->plan->num_threads, run->thread_floats);
    return size_mul(block.floats, sizeof(float), &bytes) ? bytes : SIZE_MAX;
}

attn_status run_plan(const attn_model *model, const attn_request *request,
                     enum plan_kind kind, struct plan *ret_plan, attn_error *ret_error) {
    struct run run = {.model = model, .request = request};
    struct plan plan;
    attn_status status = plan_make(model, request, kind, &plan, ret_error);

    if (status != ATTN_OK)
        return status;
    run.plan = &plan;
    plan.sizes.scratch_bytes = run_lay_out(&run, NULL, &(attn_result){0});
    if (plan.sizes.scratch_bytes == SIZE_MAX)
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    *ret_plan = plan;
    return ATTN_OK;
}
