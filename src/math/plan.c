/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c: checks a request, and computes sizes and offsets before memory is allocated. */
#include "math/plan.h"

#include "base/error.h"
#include "math/mask.h"
#include "math/model.h"
#include "math/reserve.h"

#include <limits.h>
#include <stdint.h>

/* How many bytes of one head's keys and values a cache can hold. */
#define GATHER_BYTES ((size_t)1 << 20)

/* As many operations take as long as one of the tanh() of additive scoring. */
#define TANH_FLOPS 40

/* Likewise, of what is summed up for each attention weight. */
#define SUM_FLOPS 40

/* Fewer keys stay in the cache without being gathered. */
#define GATHER_KEYS 256

/* So many are gathered even by head: a copy in the cache is worth 5% up to 512 keys. */
#define GATHER_KEYS_BY_HEAD 512

/* Larger pieces of a panel are tasks: between two, a worker looks for cheap requests. */
#define SPLIT_FLOPS 5e8

/* Bytes of the pieces' results for each thread; and their greatest share of the keys and
 * values that direct sequences read. */
#define PARTIALS_MAX   (1 << 20)
#define PARTIALS_SHARE (1.0 / 16)

/* Checks valid_lens of one sequence, whose first query is `first_query` of the batch. */
static bool valid_lens_fit(const attn_request *request, size_t sequence,
                           size_t first_query) {
    size_t key_len = request->key_lens[sequence];

    if (request->valid_lens == NULL)
        return true;
    if (!request->valid_lens_per_query)
        return request->valid_lens[sequence] <= key_len;
    for (size_t q = 0; q < request->query_lens[sequence]; q++) {
        if (request->valid_lens[first_query + q] > key_len)
            return false;
    }
    return true;
}

size_t plan_weights_heads(const attn_model_info *info, const attn_request *request) {
    switch (request->need_weights) {
    case ATTN_WEIGHTS_ALL:
        return request->weights_heads != NULL ? request->num_weights_heads
                                              : info->num_heads;
    case ATTN_WEIGHTS_MEAN:
        return 1;
    default:
        return 0;
    }
}

size_t plan_weights_rows(const attn_request *request, size_t sequence) {
    return request->weights_queries != NULL ? request->num_weights_queries
                                            : request->query_lens[sequence];
}

/* Returns whether a head's weights are computed, even if it adds nothing to the
 * outputs. */
static bool weighs_head(const struct plan *plan, const attn_request *request,
                        size_t head) {
    if (plan->kind == PLAN_HEADS || request->need_weights == ATTN_WEIGHTS_NONE)
        return plan->kind == PLAN_HEADS;
    if (request->need_weights == ATTN_WEIGHTS_MEAN || request->weights_heads == NULL)
        return true;
    for (size_t i = 0; i < request->num_weights_heads; i++) {
        if (request->weights_heads[i] == head)
            return true;
    }
    return false;
}

bool plan_is_direct(const struct plan *plan, const attn_model *model,
                    const attn_request *request, size_t sequence) {
    return plan->kind == PLAN_RUN && model->engine.native &&
           model->engine.additive_score == NULL &&
           request->key_lens[sequence] >= PLAN_DIRECT_KEYS_MIN &&
           request->query_lens[sequence] <= model->info.head_size / PLAN_DIRECT_SHARE;
}

struct plan_items plan_items(const struct plan *plan, const attn_model *model,
                             const attn_request *request, size_t sequence) {
    size_t columns = model->engine.kernels->columns;
    size_t rows = request->query_lens[sequence];
    bool direct = plan_is_direct(plan, model, request, sequence);
    bool mean = request->need_weights == ATTN_WEIGHTS_MEAN;
    struct plan_items items = {direct || mean ? 1 : model->info.num_heads, 1, 1};

    if (direct)
        rows *= plan->num_scored;
    if (!direct || !mean)
        items.panels = (rows + columns - 1) / columns;
    if (plan->splits)
        items.pieces = (request->key_lens[sequence] - 1) / KERNEL_PIECE_KEYS + 1;
    return items;
}

/* Checks that a selected index is less than `limit`; `where` says of what it is. */
static attn_status check_selected(const size_t *list, size_t count, size_t limit,
                                  const char *thing, const char *where,
                                  attn_error *ret_error) {
    for (size_t i = 0; list != NULL && i < count; i++) {
        if (list[i] >= limit)
            return error_set(ret_error, ATTN_E_VALUE,
                             "weights of %s %zu are selected, but the last one%s is %zu",
                             thing, list[i], where, limit - 1);
    }
    return ATTN_OK;
}

/* Checks which weights are selected. */
static attn_status plan_selection(const attn_model_info *info,
                                  const attn_request *request, attn_error *ret_error) {
    size_t shortest = SIZE_MAX;
    attn_status status = ATTN_OK;

    for (size_t s = 0; s < request->num_sequences; s++)
        shortest = request->query_lens[s] < shortest ? request->query_lens[s] : shortest;
    if (request->need_weights == ATTN_WEIGHTS_ALL)
        status = check_selected(request->weights_heads, request->num_weights_heads,
                                info->num_heads, "head", "", ret_error);
    if (status == ATTN_OK && request->need_weights != ATTN_WEIGHTS_NONE)
        status =
            check_selected(request->weights_queries, request->num_weights_queries,
                           shortest, "query", " of the shortest sequence", ret_error);
    return status;
}

/* Adds what the attention of one sequence needs to the plan. */
static bool plan_attention(const attn_model *model, const attn_request *request,
                           size_t sequence, struct plan *plan) {
    const attn_model_info *info = &model->info;
    size_t columns = model->engine.kernels->columns;
    size_t rows = request->query_lens[sequence], key_len = request->key_lens[sequence];
    size_t score_size = model->engine.score_size, result_size = info->head_size;
    double pairs = (double)rows * (double)key_len, heads = (double)info->num_heads;

    if (plan_is_direct(plan, model, request, sequence)) {
        plan->num_direct++;
        plan->direct_queries += rows;
        plan->direct_pairs += pairs;
        rows *= plan->num_scored; /* at most a quarter of H*D */
        heads = (double)plan->num_scored;
        score_size = info->key_size;
        result_size = info->value_size;
        if (!size_add(plan->direct_rows, rows, &plan->direct_rows))
            return false;
    } else {
        plan->projected_keys += key_len;
        plan->pairs += pairs;
        plan->num_panels += (rows - 1) / columns + 1;
    }

    double flops = 2 * (double)key_len * ((double)score_size + (double)result_size);
    double panel_flops = flops * (double)(rows < columns ? rows : columns);
    plan->items_flops += flops * (double)request->query_lens[sequence] * heads;
    if (panel_flops > plan->panel_flops)
        plan->panel_flops = panel_flops;
    if (rows > plan->piece_rows)
        plan->piece_rows = rows < columns ? rows : columns;
    if (score_size > plan->score_size)
        plan->score_size = score_size;
    if (result_size > plan->result_size)
        plan->result_size = result_size;
    return true;
}

/* Checks one sequence, and adds its rows, weights and panels to the plan. */
static attn_status plan_sequence(const attn_model *model, const attn_request *request,
                                 size_t sequence, struct plan *plan,
                                 attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    attn_sizes *sizes = &plan->sizes;
    size_t query_len = request->query_lens[sequence];
    size_t key_len = request->key_lens[sequence];
    size_t first_query = sizes->num_queries, weights;

    if (query_len == 0 || key_len == 0)
        return error_set(ret_error, ATTN_E_SHAPE, "sequence %zu is empty", sequence);
    if (info->context_length > 0 &&
        (query_len > info->context_length || key_len > info->context_length))
        return error_set(ret_error, ATTN_E_SHAPE,
                         "sequence %zu is longer than the context length %zu", sequence,
                         info->context_length);

    /* Nothing reads [sum of Tq] entries before their number is known to fit. */
    if (!size_add(sizes->num_queries, query_len, &sizes->num_queries) ||
        !size_add(sizes->num_keys, key_len, &sizes->num_keys) ||
        sizes->num_queries > INT_MAX || sizes->num_keys > INT_MAX ||
        !size_mul(plan_weights_heads(info, request), plan_weights_rows(request, sequence),
                  &weights) ||
        !size_add_mul(&sizes->weights, weights, key_len))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    if (!valid_lens_fit(request, sequence, first_query))
        return error_set(ret_error, ATTN_E_VALUE,
                         "valid_lens of sequence %zu is over its %zu keys", sequence,
                         key_len);

    if (query_len > plan->longest_query_len)
        plan->longest_query_len = query_len;
    if (key_len > plan->longest_key_len)
        plan->longest_key_len = key_len;
    if (!plan_attention(model, request, sequence, plan))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    return ATTN_OK;
}

/* Checks every sequence and adds up their sizes. */
static attn_status plan_sequences(const attn_model *model, const attn_request *request,
                                  struct plan *plan, attn_error *ret_error) {
    if (request->num_sequences == 0)
        return error_set(ret_error, ATTN_E_SHAPE, "the batch is empty");
    for (size_t s = 0; s < request->num_sequences; s++) {
        attn_status status = plan_sequence(model, request, s, plan, ret_error);
        if (status != ATTN_OK)
            return status;
    }
    return plan_selection(&model->info, request, ret_error);
}

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

/* Reserves what panel.c needs for the pieces of long sequences: the results of all keys
 * and of one piece, then maximum, sum and sums of weights of every piece. */
static bool reserve_pieces(struct plan *plan, size_t *floats) {
    size_t sums =
        plan->kind == PLAN_HEADS ? sizeof(struct panel_sums) / sizeof(float) : 0;
    size_t results, rest, start;

    plan->max_pieces = (plan->longest_key_len - 1) / KERNEL_PIECE_KEYS + 1;
    if (plan->max_pieces == 1)
        return reserve_floats(floats, 0, 0, &plan->thread_pieces);
    return size_add(plan->result_size, 1, &results) &&
           size_mul(2 * plan->piece_rows, results, &results) &&
           size_mul(plan->max_pieces, 2 * plan->piece_rows + sums, &rest) &&
           reserve_floats(floats, results, 1, &plan->thread_pieces) &&
           reserve_floats(floats, rest, 1, &start);
}

/* Returns how many items the attention is divided into. */
static double count_items(const attn_model *model, const attn_request *request,
                          const struct plan *plan) {
    double count = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        struct plan_items items = plan_items(plan, model, request, s);
        count += (double)items.heads * (double)items.panels * (double)items.pieces;
    }
    return count;
}

/* Decides whether pieces of the keys are tasks of their own: only when one panel would
 * leave threads idle, or is too large for one task, and while the results of the pieces
 * need little memory. Who computes a piece does not change a bit. */
static bool reserve_partials(const attn_model *model, const attn_request *request,
                             struct plan *plan, size_t *floats) {
    const attn_model_info *info = &model->info;
    size_t threads = plan->num_threads, direct_keys, read;
    double parts = 0;

    if (!size_add(plan->result_size, 2, &plan->partial_floats) ||
        !size_mul(plan->partial_floats, plan->piece_rows, &plan->partial_floats) ||
        !size_add(info->key_size, info->value_size, &read))
        return false;
    direct_keys = plan->sizes.num_keys - plan->projected_keys;
    plan->splits =
        plan->kind != PLAN_HEADS && request->need_weights != ATTN_WEIGHTS_MEAN &&
        request->parallel != NULL && plan->max_pieces > 1 &&
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
        longest_key_len < KERNEL_PIECE_KEYS ? longest_key_len : KERNEL_PIECE_KEYS, keeps);

    if (bytes == SIZE_MAX || !reserve_floats(&floats, bytes / sizeof(float), 1, &start) ||
        !reserve_pieces(plan, &floats))
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
    return plan->kind != PLAN_HEADS || plan_head_strips(model, plan);
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

/* Lays out the scratch memory. */
static bool plan_scratch(const attn_model *model, const attn_request *request,
                         struct plan *plan) {
    const attn_model_info *info = &model->info;
    attn_sizes *sizes = &plan->sizes;
    bool in_outputs = plan->kind != PLAN_HEADS && !info->output_projection;
    bool own_context = model->engine.score_size != info->head_size && !in_outputs;
    size_t context_rows = own_context ? sizes->num_queries : 0, floats = 0, padding;
    bool weighs = request->need_weights != ATTN_WEIGHTS_NONE;

    plan->num_threads = request->parallel != NULL ? request->parallel->num_threads : 1;
    if (plan->kind != PLAN_HEADS &&
        !size_mul(sizes->num_queries, info->out_size, &sizes->outputs))
        return false;
    if (!plan_thread(model, request, plan) || !reserve_converted(model, plan, &floats) ||
        !reserve_floats(&floats, sizes->num_queries, plan->score_width, &plan->queries) ||
        !reserve_floats(&floats, plan->projected_keys, plan->score_width, &plan->keys) ||
        !reserve_floats(&floats, plan->key_panels ? KEY_BLOCK : 0, 1, &padding) ||
        !reserve_floats(&floats, plan->projected_keys, plan->hidden, &plan->values) ||
        !reserve_direct(info, plan, &floats) ||
        !reserve_floats(&floats, context_rows, plan->hidden, &plan->context) ||
        !reserve_floats(&floats, 3 * PLAN_RANGES_MAX(info->num_heads),
                        sizeof(struct range) / sizeof(float), &plan->ranges) ||
        !reserve_floats(&floats, request->num_sequences + 1,
                        sizeof(size_t) / sizeof(float), &plan->first_items) ||
        !reserve_floats(&floats, weighs ? info->num_heads : 0, 1, &plan->head_slots) ||
        !reserve_floats(&floats, weighs ? plan->longest_query_len : 0, 1,
                        &plan->query_slots) ||
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

static double linear_flops(const struct linear *linear, size_t rows) {
    double counted = (double)(rows < PLAN_ROWS_MIN ? PLAN_ROWS_MIN : rows);
    return rows > 0 ? 2 * counted * (double)linear->in * (double)linear->out : 0;
}

/* Counts the operations of the attention, and of all three steps. */
static void count_flops(const attn_model *model, const attn_request *request,
                        struct plan *plan) {
    const struct engine *engine = &model->engine;
    const attn_model_info *info = &model->info;
    size_t queries = plan->sizes.num_queries, keys = plan->projected_keys;
    double score = engine->additive_score != NULL ? TANH_FLOPS : 2;
    size_t num_heads = info->num_heads, num_summed = num_heads;

    for (size_t h = 0; request->head_mask != NULL && h < num_heads; h++)
        num_summed -= mask_head_factor(request, h) == 0.0F;
    double summed = (double)num_summed / (double)num_heads; /* share of the heads */
    double scored = (double)plan->num_scored / (double)num_heads;

    plan->fold_flops = scored * linear_flops(&engine->to_key, plan->direct_queries);
    plan->sums_flops = summed * linear_flops(&engine->to_value, plan->direct_queries);
    plan->attend_flops = plan->pairs * (scored * score * (double)plan->score_width +
                                        summed * 2 * (double)plan->hidden);
    plan->attend_flops += 2 * plan->direct_pairs * (double)plan->num_scored *
                          ((double)info->key_size + (double)info->value_size);
    double flops = plan->attend_flops + plan->fold_flops + plan->sums_flops +
                   summed * linear_flops(&engine->to_value, keys);
    if (plan->longest_key_len > 1) /* else no score matters */
        flops += scored * (linear_flops(&engine->to_query, queries) +
                           linear_flops(&engine->to_key, keys));
    if (plan->kind != PLAN_HEADS && info->output_projection)
        flops += summed * linear_flops(&engine->to_output, queries);
    if (plan->kind == PLAN_HEADS) {
        plan->attend_flops += SUM_FLOPS * plan->pairs * (double)num_heads;
        plan->heads_flops = linear_flops(&engine->to_output, queries) +
                            (double)queries * (double)model->info.out_size *
                                (double)num_heads * (double)(num_heads + 4);
        flops += SUM_FLOPS * plan->pairs * (double)num_heads + plan->heads_flops;
    }
    plan->sizes.flops = flops;
}

attn_status plan_make(const attn_model *model, const attn_request *request,
                      enum plan_kind kind, struct plan *ret_plan, attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    const struct engine *engine = &model->engine;
    size_t columns = engine->kernels->columns;
    struct plan plan = {.kind = kind,
                        .by_head = engine->native && info->head_size % columns == 0 &&
                                   engine->score_size % columns == 0,
                        .hidden = info->num_heads * info->head_size,
                        .score_width = info->num_heads * engine->score_size};

    plan.key_panels =
        plan.by_head && engine->additive_score == NULL && columns >= PLAN_PANELS_COLUMNS;
    for (size_t h = 0; h < info->num_heads; h++)
        plan.num_scored +=
            mask_head_factor(request, h) != 0.0F || weighs_head(&plan, request, h);
    attn_status status = plan_sequences(model, request, &plan, ret_error);
    if (status != ATTN_OK)
        return status;
    if (!plan_scratch(model, request, &plan))
        return error_set(ret_error, ATTN_E_OVERFLOW, "the batch is too large");
    count_flops(model, request, &plan);
    *ret_plan = plan;
    return ATTN_OK;
}

attn_status attn_plan(const attn_model *model, const attn_request *request,
                      attn_sizes *ret_sizes, attn_error *ret_error) {
    struct plan plan;
    attn_status status = plan_make(model, request, PLAN_RUN, &plan, ret_error);

    if (status == ATTN_OK)
        *ret_sizes = plan.sizes;
    return status;
}
