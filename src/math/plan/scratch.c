/* SPDX-License-Identifier: Apache-2.0 */
/* scratch.c: lays out the scratch memory, of all threads and of each. */
#include "math/plan/scratch.h"

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

/* Reserves memory for the largest input in bfloat16; none for kernels in float32. */
static bool reserve_converted(const attn_model *model, struct plan *plan,
                              size_t *floats) {
    const attn_model_info *info = &model->info;
    size_t widest = info->key_size, queries, keys;

    widest = info->value_size > widest ? info->value_size : widest;
    if (model->engine.kernels->convert_bf16 == NULL)
        return reserve_floats(floats, 0, 0, &plan->converted);
    if (!size_mul(plan->sizes.num_queries, info->query_size / 2 + 1, &queries) ||
        !size_mul(plan->projected_keys, widest / 2 + 1, &keys))
        return false;
    return reserve_floats(floats, keys > queries ? keys : queries, 1, &plan->converted);
}

/* Reserves memory for the largest input after the norm before the layer. */
static bool reserve_normed(const attn_model_info *info, struct plan *plan,
                           size_t *floats) {
    size_t widest = info->key_size, queries, keys;

    widest = info->value_size > widest ? info->value_size : widest;
    if (!info->pre_norm_applied)
        return reserve_floats(floats, 0, 0, &plan->normed);
    if (!size_mul(plan->sizes.num_queries, info->query_size, &queries) ||
        !size_mul(plan->norms_keys ? plan->projected_keys : 0, widest, &keys))
        return false;
    return reserve_floats(floats, keys > queries ? keys : queries, 1, &plan->normed);
}

/* Reserves tables of rotations. A table costs as much as ROTATE_STEP rows without one. */
static bool reserve_rotations(const attn_model *model, struct plan *plan,
                              size_t *floats) {
    size_t rows;

    if (model->info.rope_size > 0 &&
        size_add(plan->sizes.num_queries, plan->sizes.num_keys, &rows) &&
        rows > ROTATE_STEP)
        plan->num_rotations = model->rotation.long_frequencies != NULL ? 2 : 1;
    return reserve_floats(floats, plan->num_rotations * ROTATE_STEP * 2,
                          model->info.rope_size, &plan->rotations);
}

/* Sizes what attend/finish.c needs of a thread's scratch: what it rotates with, and a
 * panel of keys. */
static bool plan_finish(const attn_model *model, struct plan *plan) {
    size_t num_pairs = model->info.rope_size / 2, floats = 0, start, angles;

    if (!plan->finishes)
        return true;
    if (!size_mul(num_pairs, ROTATE_FLOATS(1) + 2, &angles) ||
        !reserve_floats(&floats, angles, 1, &start) ||
        !reserve_floats(&floats, KEY_BLOCK, model->engine.score_size, &plan->finish_tile))
        return false;
    if (floats > plan->thread_floats)
        plan->thread_floats = floats;
    return true;
}

/* Sizes what heads/ needs of a thread's scratch: a strip of each head's outputs, then the
 * heads' contributions to some columns and their sum. */
static bool plan_head_strips(const attn_model *model, struct plan *plan) {
    const struct kernels *kernels = model->engine.kernels;
    size_t num_heads = model->info.num_heads, floats = 0, inputs, inputs_rows, parts_rows;

    plan->head_ld = model->info.head_size + 2 * (kernels->k_step - 1);
    if (!size_mul(num_heads, PLAN_HEAD_ROWS, &inputs_rows) ||
        !size_add(inputs_rows, PLAN_HEAD_ROWS, &parts_rows) ||
        !reserve_floats(&floats, inputs_rows, plan->head_ld, &inputs) ||
        !reserve_floats(&floats, parts_rows, kernels->columns, &plan->head_parts))
        return false;
    if (plan->thread_floats < floats)
        plan->thread_floats = floats;
    return true;
}

/* Reserves what chunks.c needs for the chunks of long sequences: the results of all keys
 * and of one chunk, then maximum, sum and sums of weights of every chunk. */
static bool reserve_chunks(struct plan *plan, size_t *floats) {
    size_t sums =
        plan->kind == PLAN_HEADS ? sizeof(struct panel_sums) / sizeof(float) : 0;
    size_t results, rest, start;

    plan->max_chunks = (plan->longest_key_len - 1) / KERNEL_CHUNK_KEYS + 1;
    if (plan->max_chunks == 1)
        return reserve_floats(floats, 0, 0, &plan->thread_chunks);
    return size_add(plan->result_size, 1, &results) &&
           size_mul(2 * plan->chunk_rows, results, &results) &&
           size_mul(plan->max_chunks, 2 * plan->chunk_rows + sums, &rest) &&
           reserve_floats(floats, results, 1, &plan->thread_chunks) &&
           reserve_floats(floats, rest, 1, &start);
}

/* Reserves the tile of biases of a panel, in either layout, and the line that it is made
 * from; see attend/bias.c. */
static bool reserve_bias(const attn_model *model, const attn_request *request,
                         const struct plan *plan, size_t *floats, size_t *ret_start) {
    size_t keys = plan->longest_key_len;

    if (model->info.bias == ATTN_BIAS_NONE && request->key_positions == NULL)
        return reserve_floats(floats, 0, 0, ret_start);
    keys = keys < KERNEL_CHUNK_KEYS ? keys : KERNEL_CHUNK_KEYS;
    keys = (keys + KERNEL_COLUMNS_MAX - 1) / KERNEL_COLUMNS_MAX * KERNEL_COLUMNS_MAX;
    /* A tile [keys, columns], and a line of keys + columns - 1. */
    return reserve_floats(floats, keys + 1, KERNEL_COLUMNS_MAX + 1, ret_start);
}

/* Returns how many items the attention is divided into. */
static double count_items(const attn_model *model, const attn_request *request,
                          const struct plan *plan) {
    double count = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        struct plan_items items = plan_items(plan, model, request, s);
        count += (double)items.heads * (double)items.panels * (double)items.chunks;
    }
    return count;
}

/* Decides whether chunks of the keys are tasks of their own: only when one panel would
 * leave threads idle, or is too large for one task, and while the results of the chunks
 * need little memory. Who computes a chunk does not change a bit. */
static bool reserve_partials(const attn_model *model, const attn_request *request,
                             struct plan *plan, size_t *floats) {
    const attn_model_info *info = &model->info;
    size_t threads = plan->num_threads, direct_keys, read;
    double parts = 0;

    if (!size_add(plan->result_size, 2, &plan->partial_floats) ||
        !size_mul(plan->partial_floats, plan->chunk_rows, &plan->partial_floats) ||
        !size_add(info->key_size, info->value_size, &read))
        return false;
    direct_keys = plan->sizes.num_keys - plan->projected_keys;
    plan->splits =
        plan->kind != PLAN_HEADS && request->need_weights != ATTN_WEIGHTS_MEAN &&
        request->parallel != NULL && plan->max_chunks > 1 &&
        ((threads > 1 && 2 * (double)threads * plan->panel_flops >= plan->items_flops) ||
         plan->panel_flops > SPLIT_FLOPS);
    if (plan->splits) {
        double max = (double)PARTIALS_MAX / sizeof(float) * (double)threads;
        double share = PARTIALS_SHARE * (double)direct_keys * (double)read;
        parts = count_items(model, request, plan);
        plan->splits =
            parts * (double)plan->partial_floats <= (max > share ? max : share);
    }
    plan->merge_flops = 4 * parts * (double)plan->partial_floats;
    return reserve_floats(floats, plan->splits ? (size_t)parts : 0, plan->partial_floats,
                          &plan->partials);
}

/* Sizes the scratch of one thread: that of the kernels, then what attend/ needs. */
static bool plan_thread(const attn_model *model, const attn_request *request,
                        struct plan *plan) {
    const struct engine *engine = &model->engine;
    size_t longest_key_len = plan->longest_key_len;
    size_t row = engine->score_size + model->info.head_size, floats = 0, start, tile;
    bool keeps = plan->kind == PLAN_HEADS || plan->sizes.weights > 0;
    size_t bytes = kernel_scratch_bytes(
        plan->score_size, plan->result_size,
        longest_key_len < KERNEL_CHUNK_KEYS ? longest_key_len : KERNEL_CHUNK_KEYS, keeps);

    if (bytes == SIZE_MAX || !reserve_floats(&floats, bytes / sizeof(float), 1, &start) ||
        !reserve_chunks(plan, &floats) ||
        !reserve_floats(&floats, plan->grouped ? plan->chunk_rows : 0, engine->score_size,
                        &plan->thread_queries) ||
        !reserve_bias(model, request, plan, &floats, &plan->thread_bias))
        return false;

    if (request->need_weights == ATTN_WEIGHTS_MEAN) {
        if (!reserve_floats(&floats, longest_key_len, KERNEL_COLUMNS_MAX,
                            &plan->thread_extra))
            return false;
    } else {
        size_t max =
            plan->by_head ? GATHER_KEYS_BY_HEAD : GATHER_BYTES / sizeof(float) / row;
        if (longest_key_len >= GATHER_KEYS)
            plan->gather_keys = longest_key_len < max ? longest_key_len : max;
        if (!reserve_floats(&floats, plan->gather_keys, row, &plan->thread_extra))
            return false;
    }
    plan->thread_floats = floats;
    if (plan->num_direct > 0) {
        if (!size_add(model->info.head_size, (size_t)2 * KERNEL_COLUMNS_MAX, &tile) ||
            !size_mul(tile, PLAN_DIRECT_ROWS, &tile))
            return false;
        if (tile > plan->thread_floats)
            plan->thread_floats = tile;
    }
    return plan_finish(model, plan) &&
           (plan->kind != PLAN_HEADS || plan_head_strips(model, plan));
}

/* Reserves what the heads' sums are added up from. */
static bool reserve_head_sums(const attn_model_info *info, struct plan *plan,
                              size_t *floats) {
    size_t count = info->num_heads + 1, panel_rows, strip_rows;

    plan->num_strips = (plan->sizes.num_queries - 1) / PLAN_HEAD_ROWS + 1;
    return size_mul(plan->num_panels, info->num_heads, &panel_rows) &&
           size_mul(plan->num_strips, count, &strip_rows) &&
           reserve_floats(floats, panel_rows, sizeof(attn_head_sums) / sizeof(float),
                          &plan->panel_sums) &&
           reserve_floats(floats, plan->num_panels,
                          sizeof(attn_head_sums) / sizeof(float), &plan->even_sums) &&
           size_mul(strip_rows, sizeof(double) / sizeof(float), &strip_rows) &&
           reserve_floats(floats, strip_rows, count, &plan->strip_products);
}

/* Reserves the rows of direct sequences; see struct run. */
static bool reserve_direct(const attn_model_info *info, struct plan *plan,
                           size_t *floats) {
    size_t width = info->key_size > info->value_size ? info->key_size : info->value_size;

    return size_round_up(width, KERNEL_COLUMNS_MAX, &plan->direct_ld) &&
           reserve_floats(floats, plan->direct_rows, plan->direct_ld, &plan->direct);
}

bool plan_scratch(const attn_model *model, const attn_request *request,
                  struct plan *plan) {
    const attn_model_info *info = &model->info;
    attn_sizes *sizes = &plan->sizes;
    bool outputs = plan->kind != PLAN_HEADS && !request->omit_outputs;
    bool in_outputs = outputs && !info->output_projection;
    bool own_context = model->engine.score_size != info->head_size && !in_outputs;
    size_t context_rows = own_context ? sizes->num_queries : 0, floats = 0, padding;
    bool weighs = request->need_weights != ATTN_WEIGHTS_NONE;

    plan->num_threads = request->parallel != NULL ? request->parallel->num_threads : 1;
    if (!size_mul(sizes->num_queries, outputs ? info->out_size : 0, &sizes->outputs) ||
        !size_mul(sizes->num_queries, request->need_heads ? plan->hidden : 0,
                  &sizes->heads) ||
        !size_mul(sizes->num_queries, request->need_lse ? info->num_heads : 0,
                  &sizes->lse))
        return false;
    if (!plan_thread(model, request, plan) || !reserve_converted(model, plan, &floats) ||
        !reserve_normed(info, plan, &floats) ||
        !reserve_rotations(model, plan, &floats) ||
        !reserve_floats(&floats, sizes->num_queries, plan->score_width, &plan->queries) ||
        !reserve_floats(&floats, plan->projected_keys, plan->key_width, &plan->keys) ||
        !reserve_floats(&floats, plan->key_panels ? KEY_BLOCK : 0, 1, &padding) ||
        !reserve_floats(&floats, plan->projected_keys, plan->value_width,
                        &plan->values) ||
        !reserve_direct(info, plan, &floats) ||
        !reserve_floats(&floats, context_rows, plan->hidden, &plan->context) ||
        !reserve_floats(&floats, PLAN_RANGES * PLAN_RANGES_MAX(info->num_heads),
                        sizeof(struct range) / sizeof(float), &plan->ranges) ||
        !reserve_floats(&floats, request->num_sequences + 1,
                        sizeof(size_t) / sizeof(float), &plan->first_items) ||
        !reserve_floats(&floats, request->num_sequences,
                        sizeof(struct sequence_position) / sizeof(float),
                        &plan->sequences) ||
        !reserve_floats(&floats, weighs ? info->num_heads : 0, 1, &plan->head_indices) ||
        !reserve_floats(&floats, weighs ? plan->longest_query_len : 0, 1,
                        &plan->query_indices) ||
        !reserve_partials(model, request, plan, &floats) ||
        (plan->kind == PLAN_HEADS && !reserve_head_sums(info, plan, &floats)) ||
        !reserve_floats(&floats, plan->num_threads, plan->thread_floats,
                        &plan->thread_scratch) ||
        !size_mul(floats, sizeof(float), &sizes->scratch_bytes))
        return false;
    if (!own_context)
        plan->context = plan->queries;
    return true;
}
