/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c: lays out the scratch memory, of all threads and of each. What saturates at
 * SIZE_MAX on the way is refused when it is reserved. */
#include "math/plan/parts.h"

#include "math/plan/rules.h"
#include "math/reserve.h"
#include "math/rows/rotate.h"

/* How many bytes of one head's keys and values a cache can hold. */
#define GATHER_BYTES ((size_t)1 << 20)

/* Fewer keys stay in the cache without being gathered. */
#define GATHER_KEYS 256

/* So many are gathered even by head: a copy in the cache is worth 5% up to 512 keys. */
#define GATHER_KEYS_BY_HEAD 512

/* Larger chunks of a panel are tasks: between two, a worker looks for cheap requests. */
#define SPLIT_FLOPS 5e8

/* Bytes of the chunks' results for each thread; and their greatest share of the keys and
 * values that direct sequences read. */
#define PARTIALS_MAX   (1 << 20)
#define PARTIALS_SHARE (1.0 / 16)

/* Floats of the weights that chunks share until they are reduced. */
#define SHARED_MAX ((size_t)4 << 20)

#define FLOATS(type) (sizeof(type) / sizeof(float))

/* Returns a * b, or SIZE_MAX. */
static size_t product_of(size_t a, size_t b) {
    size_t product = 0;
    size_add_mul_saturating(&product, a, b);
    return product;
}

/* Returns how many sums reductions add up, or SIZE_MAX. */
static size_t count_sums(const attn_sizes *sizes) {
    size_t count = sizes->received;
    size_add_saturating(&count, sizes->block_weights);
    return count;
}

/* Returns whether what is reduced can wait until chunks are merged. */
static bool reduces_merged(const attn_request *request) {
    return !plan_reduces(request) ||
           (request->num_sequences == 1 && !request->reduce.scores &&
            !plan_accumulates(request));
}

/* Plans the weights that chunks share where they are tasks, and are reduced. They are not
 * split when that is too much. */
static void share_weights(const attn_model *model, const attn_request *request,
                          struct plan *plan) {
    struct plan_scratch *scratch = &plan->scratch;
    const struct plan_items items = plan_items(plan, model, request, 0);
    size_t row = plan_weights_ld(plan->batch.longest_key_len);

    if (!scratch->splits || !plan_reduces_weights(request) ||
        request->need_weights == ATTN_WEIGHTS_ALL)
        return;
    scratch->shared_panels = product_of(items.heads, items.panels);
    scratch->splits = product_of(product_of(scratch->shared_panels, row),
                                 plan->batch.panel_rows) <= SHARED_MAX;
    if (!scratch->splits)
        scratch->shared_panels = 0;
}

/* Decides whether chunks of the keys are tasks of their own: only when one panel would
 * leave threads idle, or is too large for one task, and while the results of the chunks
 * need little memory. Who computes a chunk does not change a bit. */
static void split_chunks(const attn_model *model, const attn_request *request,
                         struct plan *plan) {
    const struct plan_batch *batch = &plan->batch;
    struct plan_scratch *scratch = &plan->scratch;
    size_t direct_keys = plan->sizes.num_keys - batch->projected_keys;
    double threads = (double)plan->num_threads, count = 0;
    double max = (double)PARTIALS_MAX / sizeof(float) * threads;
    double share = PARTIALS_SHARE * (double)direct_keys *
                   ((double)model->info.width.key + (double)model->info.width.value);

    scratch->partial_floats = product_of(batch->result_size + 2, batch->panel_rows);
    scratch->splits =
        plan->kind != PLAN_HEADS && request->need_weights != ATTN_WEIGHTS_MEAN &&
        reduces_merged(request) && request->parallel != NULL && scratch->max_chunks > 1 &&
        ((threads > 1 && 2 * threads * batch->panel_flops >= batch->items_flops) ||
         batch->panel_flops > SPLIT_FLOPS);
    if (!scratch->splits)
        return;

    for (size_t s = 0; s < request->num_sequences; s++) {
        const struct plan_items items = plan_items(plan, model, request, s);
        count += (double)items.heads * (double)items.panels * (double)items.chunks;
    }
    scratch->splits =
        count * (double)scratch->partial_floats <= (max > share ? max : share);
    share_weights(model, request, plan);
    scratch->num_partials = scratch->splits ? (size_t)count : 0;
}

/* Works out what sizes of arrays follow from. */
static void find_counts(const attn_model *model, const attn_request *request,
                        struct plan *plan) {
    const attn_model_info *info = &model->info;
    size_t k_step = model->engine.kernels->k_step, longest = plan->batch.longest_key_len;
    size_t key_floats = model->engine.score_size + info->width.head;
    size_t rows = plan->sizes.num_queries;
    struct plan_scratch *scratch = &plan->scratch;

    /* A table costs as much as ROTATE_STEP rows without one. */
    size_add_saturating(&rows, plan->sizes.num_keys);
    if (info->rotation.size > 0 && rows > ROTATE_STEP)
        scratch->num_rotations = model->rotation.long_frequencies != NULL ? 2 : 1;
    scratch->direct_ld =
        size_max(info->width.key, info->width.value) + KERNEL_COLUMNS_MAX - 1;
    scratch->direct_ld -= scratch->direct_ld % KERNEL_COLUMNS_MAX;
    scratch->max_chunks = (longest - 1) / KERNEL_CHUNK_KEYS + 1;
    if (longest >= GATHER_KEYS && request->need_weights != ATTN_WEIGHTS_MEAN)
        scratch->gather_keys =
            size_min(longest, plan->layer.by_head || plan->layer.packs_values
                                  ? GATHER_KEYS_BY_HEAD
                                  : GATHER_BYTES / sizeof(float) / key_floats);
    scratch->num_strips = (plan->sizes.num_queries - 1) / PLAN_HEAD_ROWS + 1;
    scratch->head_ld = info->width.head + 2 * (k_step - 1);
    split_chunks(model, request, plan);
}

/* Lays out the scratch of one thread. */
static bool lay_out_thread(const attn_model *model, const attn_request *request,
                           struct plan *plan) {
    const struct engine *engine = &model->engine;
    const attn_model_info *info = &model->info;
    const struct plan_batch *batch = &plan->batch;
    struct plan_scratch *scratch = &plan->scratch;
    bool heads = plan->kind == PLAN_HEADS, finishes = plan->layer.finishes;
    bool chunks = scratch->max_chunks > 1;
    bool one_by_one = plan_weighs(request) && request->need_weights != ATTN_WEIGHTS_ALL;
    bool biased = info->score.bias != ATTN_BIAS_NONE || request->key_positions != NULL ||
                  request->bias != NULL;
    size_t keys = size_min(batch->longest_key_len, KERNEL_CHUNK_KEYS);
    size_t kernels = kernel_scratch_bytes(batch->score_size, batch->result_size, keys,
                                          heads || plan_weighs(request));
    size_t angles = model_has_sections(info) ? ATTN_AXES + 1 : 1;
    size_t bias_keys = keys + KERNEL_COLUMNS_MAX - 1, floats;

    bias_keys -= bias_keys % KERNEL_COLUMNS_MAX;
    const struct reserve_array arrays[] = {
        [PLAN_THREAD_KERNELS] = {kernels / sizeof(float), 1},
        [PLAN_THREAD_TOTAL] = {chunks ? 2 * batch->panel_rows : 0,
                               batch->result_size + 1},
        [PLAN_THREAD_CHUNKS] = {chunks ? scratch->max_chunks : 0,
                                2 * batch->panel_rows +
                                    (heads ? FLOATS(struct panel_sums) : 0)},
        [PLAN_THREAD_QUERIES] = {batch->grouped ? batch->panel_rows : 0,
                                 size_max(engine->score_size, info->width.head)},
        /* A tile [keys, columns] in either layout, and a line of keys + columns - 1. */
        [PLAN_THREAD_BIAS] = {biased ? bias_keys + 1 : 0, KERNEL_COLUMNS_MAX + 1},
        [PLAN_THREAD_WEIGHTS] = {one_by_one ? plan_weights_ld(batch->longest_key_len) : 0,
                                 batch->panel_rows},
        [PLAN_THREAD_TOP] = {request->reduce.top_k, REDUCE_TOP_FLOATS},
        [PLAN_THREAD_PREFIX] = {plan_sums_prefixes(request) ? batch->longest_key_len + 1
                                                            : 0,
                                FLOATS(double)},
        [PLAN_THREAD_GATHERED] = {scratch->gather_keys,
                                  engine->score_size + info->width.head},
        [PLAN_THREAD_ROTATION] = {finishes ? info->rotation.size / 2 : 0,
                                  angles * ROTATE_FLOATS((size_t)1) + 2},
        [PLAN_THREAD_TILE] = {finishes || plan->layer.packs ? KEY_BLOCK : 0,
                              engine->score_size},
        [PLAN_THREAD_SUMS] = {batch->num_direct > 0 ? PLAN_DIRECT_ROWS : 0,
                              info->width.head + (size_t)2 * KERNEL_COLUMNS_MAX},
        [PLAN_THREAD_INPUTS] = {heads ? product_of(info->num_heads, PLAN_HEAD_ROWS) : 0,
                                scratch->head_ld},
        [PLAN_THREAD_PARTS] = {heads ? product_of(info->num_heads + 1, PLAN_HEAD_ROWS)
                                     : 0,
                               engine->kernels->columns},
    };
    static const size_t steps[] = {PLAN_THREAD_KERNELS, PLAN_THREAD_ROTATION,
                                   PLAN_THREAD_SUMS, PLAN_THREAD_INPUTS,
                                   PLAN_THREAD_ARRAYS};
    for (size_t i = 0; i + 1 < sizeof steps / sizeof steps[0]; i++) {
        if (!reserve_arrays(arrays + steps[i], steps[i + 1] - steps[i],
                            scratch->thread_first + steps[i], &floats))
            return false;
        scratch->thread_floats = size_max(scratch->thread_floats, floats);
    }
    return true;
}

/* Returns the numbers of the largest input that is normed before the layer. */
static size_t count_normed(const attn_model_info *info, const struct plan *plan) {
    size_t widest = size_max(info->width.key, info->width.value);
    size_t keys = plan->layer.norms_keys ? plan->batch.projected_keys : 0;

    if (!info->pre_norm.applied)
        return 0;
    return size_max(product_of(plan->sizes.num_queries, info->width.query),
                    product_of(keys, widest));
}

/* Returns the numbers of the latent rows of an input, at most. */
static size_t count_latents(const attn_model_info *info, const struct plan *plan) {
    return size_max(product_of(plan->sizes.num_queries, info->latent.query),
                    product_of(plan->batch.projected_keys, info->latent.key));
}

/* Returns the words of keys that are projected or copied. */
static size_t count_keys(const attn_model *model, const struct plan *plan) {
    const struct plan_layer *layer = &plan->layer;
    bool in_words = layer->key_panels && !layer->finishes;
    size_t width =
        layer->packs ? layer->phase_heads * model->engine.score_size : layer->key_width;

    if (model->info.projection.given && !layer->packs)
        return 0;
    return product_of(plan->batch.projected_keys,
                      width / (in_words ? model->engine.kernels->k_step : 1));
}

/* The same of values. */
static size_t count_values(const attn_model *model, const struct plan *plan) {
    const struct plan_layer *layer = &plan->layer;
    size_t width = layer->packs_values ? layer->phase_heads * model->info.width.head
                                       : layer->value_width;

    if (model->info.projection.given && !layer->packs_values)
        return 0;
    return product_of(plan->batch.value_rows, width);
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

/* Lays out all arrays. */
static bool lay_out_all(const attn_model *model, const attn_request *request,
                        struct plan *plan) {
    const attn_model_info *info = &model->info;
    const struct plan_layer *layer = &plan->layer;
    const struct plan_batch *batch = &plan->batch;
    struct plan_scratch *scratch = &plan->scratch;
    size_t queries = plan->sizes.num_queries, projected = batch->projected_keys, floats;
    size_t heads = info->num_heads;
    const struct kernels *kernels = model->engine.kernels;
    bool sums = plan->kind == PLAN_HEADS, rows = plan_has_rows(request);
    /* The heads' outputs may overwrite the queries, or be a result themselves. */
    bool given = info->projection.given;
    bool in_outputs = !request->omit_outputs && !info->linears[ATTN_OUTPUT].weight;
    bool in_result = !sums && (request->need_heads || in_outputs);
    bool own_context =
        !given && model->engine.score_size != info->width.head && !in_result;
    size_t converted = size_min(size_max(queries, projected),
                                plan_converted_rows(plan, kernels->strip_rows));

    const struct reserve_array arrays[] = {
        [PLAN_CONVERTED] = {engine_converts(&model->engine) ? converted : 0,
                            plan_converted_ld(kernels, find_widest(info, layer))},
        [PLAN_NORMED] = {count_normed(info, plan), 1},
        [PLAN_LATENTS] = {count_latents(info, plan), 1},
        [PLAN_ROTATIONS] = {scratch->num_rotations * ROTATE_STEP * 2,
                            info->rotation.size},
        [PLAN_QUERIES] = {given ? 0 : queries, layer->score_width},
        [PLAN_KEYS] = {count_keys(model, plan), 1},
        [PLAN_KEYS_END] = {layer->key_panels ? KEY_BLOCK : 0, 1},
        [PLAN_VALUES] = {count_values(model, plan), 1},
        [PLAN_VALUE_ROWS] = {count_value_rows(model, plan), layer->value_width},
        [PLAN_DIRECT_SUMS] = {batch->direct_rows, scratch->direct_ld},
        [PLAN_GATES] = {layer->gates ? queries : 0, layer->hidden},
        [PLAN_CONTEXT] = {own_context ? queries : 0, layer->hidden},
        [PLAN_HEAD_RANGES] = {PLAN_RANGES * PLAN_RANGES_MAX(heads), FLOATS(struct range)},
        [PLAN_FIRST_ITEMS] = {request->num_sequences + 1, FLOATS(size_t)},
        [PLAN_SEQUENCES] = {request->num_sequences, FLOATS(struct sequence_position)},
        [PLAN_HEAD_INDICES] = {rows ? heads : 0, 1},
        [PLAN_QUERY_INDICES] = {rows ? batch->longest_query_len : 0, 2},
        [PLAN_SUMS] = {count_sums(&plan->sizes), FLOATS(double)},
        [PLAN_ONE_HEAD] = {plan->batch.contributing_rows, layer->hidden},
        [PLAN_NO_BIAS] = {request->need_contributions,
                          info->width.out + KERNEL_COLUMNS_MAX},
        [PLAN_PARTIALS] = {scratch->num_partials, scratch->partial_floats},
        [PLAN_SHARED_WEIGHTS] = {product_of(scratch->shared_panels, batch->panel_rows),
                                 plan_weights_ld(batch->longest_key_len)},
        [PLAN_PANEL_SUMS] = {sums ? product_of(batch->num_panels, heads) : 0,
                             FLOATS(attn_head_sums)},
        [PLAN_EVEN_SUMS] = {sums ? batch->num_panels : 0, FLOATS(attn_head_sums)},
        [PLAN_STRIP_PRODUCTS] = {sums ? product_of(scratch->num_strips * FLOATS(double),
                                                   heads + 1)
                                      : 0,
                                 heads + 1},
        [PLAN_THREADS] = {plan->num_threads, scratch->thread_floats},
    };
    if (!reserve_arrays(arrays, PLAN_ARRAYS, scratch->first, &floats) ||
        !size_mul(floats, sizeof(float), &plan->sizes.scratch_bytes))
        return false;
    if (!own_context)
        scratch->first[PLAN_CONTEXT] = scratch->first[PLAN_QUERIES];
    return true;
}

bool plan_scratch(const attn_model *model, const attn_request *request,
                  struct plan *plan) {
    find_counts(model, request, plan);
    return lay_out_thread(model, request, plan) && lay_out_all(model, request, plan);
}
