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

/* Bytes for each thread. */
#define PARTIALS_MAX (1 << 20)

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
    plan->pairs += (double)query_len * (double)key_len;
    plan->num_panels += (query_len - 1) / model->engine.kernels->columns + 1;
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
static bool reserve_converted(const attn_model *model, const attn_sizes *sizes,
                              size_t *floats, size_t *ret_offset) {
    const attn_model_info *info = &model->info;
    size_t widest = info->key_size, queries, keys;

    widest = info->value_size > widest ? info->value_size : widest;
    if (model->engine.kernels->convert_bf16 == NULL)
        return reserve_floats(floats, 0, 0, ret_offset);
    if (!size_mul(sizes->num_queries, info->query_size / 2 + 1, &queries) ||
        !size_mul(sizes->num_keys, widest / 2 + 1, &keys))
        return false;
    return reserve_floats(floats, keys > queries ? keys : queries, 1, ret_offset);
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
static bool reserve_pieces(const attn_model *model, struct plan *plan, size_t *floats) {
    size_t columns = model->engine.kernels->columns, results, rest, start;
    size_t sums =
        plan->kind == PLAN_HEADS ? sizeof(struct panel_sums) / sizeof(float) : 0;

    plan->max_pieces = (plan->longest_key_len - 1) / KERNEL_PIECE_KEYS + 1;
    plan->piece_rows =
        plan->longest_query_len < columns ? plan->longest_query_len : columns;
    if (plan->max_pieces == 1)
        return reserve_floats(floats, 0, 0, &plan->thread_pieces);
    return size_add(model->info.head_size, 1, &results) &&
           size_mul(2 * plan->piece_rows, results, &results) &&
           size_mul(plan->max_pieces, 2 * plan->piece_rows + sums, &rest) &&
           reserve_floats(floats, results, 1, &plan->thread_pieces) &&
           reserve_floats(floats, rest, 1, &start);
}

/* Returns how many pieces of the keys all panels of all heads have together. Cannot wrap:
 * there are at most INT_MAX queries and keys. */
static double count_parts(const attn_model *model, const attn_request *request) {
    size_t columns = model->engine.kernels->columns, parts = 0;

    for (size_t s = 0; s < request->num_sequences; s++)
        parts += ((request->key_lens[s] - 1) / KERNEL_PIECE_KEYS + 1) *
                 ((request->query_lens[s] - 1) / columns + 1);
    return (double)parts * (double)model->info.num_heads;
}

/* Decides whether pieces of the keys are tasks of their own: only when one panel is too
 * large a part of the whole for all threads to be busy, and while the results of the
 * pieces need little memory. Who computes a piece does not change a bit. */
static bool reserve_partials(const attn_model *model, const attn_request *request,
                             struct plan *plan, size_t *floats) {
    double largest = (double)plan->piece_rows * (double)plan->longest_key_len;
    double threads = (double)plan->num_threads, parts = count_parts(model, request);

    if (!size_add(model->info.head_size, 2, &plan->partial_floats) ||
        !size_mul(plan->partial_floats, plan->piece_rows, &plan->partial_floats))
        return false;
    plan->splits =
        plan->kind == PLAN_RUN && request->need_weights != ATTN_WEIGHTS_MEAN &&
        plan->num_threads > 1 && plan->max_pieces > 1 &&
        2 * threads * largest >= plan->pairs * (double)model->info.num_heads &&
        parts * (double)plan->partial_floats * sizeof(float) <= PARTIALS_MAX * threads;
    plan->merge_flops = 4 * parts * (double)plan->partial_floats;
    return reserve_floats(floats, plan->splits ? (size_t)parts : 0, plan->partial_floats,
                          &plan->partials);
}

/* Sizes the scratch of one thread: that of the kernels, then what attend/ needs. */
static bool plan_thread(const attn_model *model, const attn_request *request,
                        struct plan *plan) {
    const struct engine *engine = &model->engine;
    size_t longest_key_len = plan->longest_key_len;
    size_t row = engine->score_size + model->info.head_size, floats = 0, start;
    bool keeps = plan->kind == PLAN_HEADS || plan->sizes.weights > 0;
    size_t bytes = kernel_scratch_bytes(
        engine->score_size, model->info.head_size,
        longest_key_len < KERNEL_PIECE_KEYS ? longest_key_len : KERNEL_PIECE_KEYS, keeps);

    if (bytes == SIZE_MAX || !reserve_floats(&floats, bytes / sizeof(float), 1, &start) ||
        !reserve_pieces(model, plan, &floats))
        return false;

    if (request->need_weights == ATTN_WEIGHTS_MEAN) {
        if (!reserve_floats(&floats, longest_key_len, KERNEL_COLUMNS_MAX,
                            &plan->thread_extra))
            return false;
    } else {
        size_t max = GATHER_BYTES / sizeof(float) / row;
        if (longest_key_len >= GATHER_KEYS && !plan->by_head)
            plan->gather_keys = longest_key_len < max ? longest_key_len : max;
        if (!reserve_floats(&floats, plan->gather_keys, row, &plan->thread_extra))
            return false;
    }
    plan->thread_floats = floats;
    return plan->kind == PLAN_RUN || plan_head_strips(model, plan);
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

/* Lays out the scratch memory. */
static bool plan_scratch(const attn_model *model, const attn_request *request,
                         struct plan *plan) {
    const attn_model_info *info = &model->info;
    attn_sizes *sizes = &plan->sizes;
    bool in_outputs = plan->kind == PLAN_RUN && !info->output_projection;
    bool own_context = model->engine.score_size != info->head_size && !in_outputs;
    size_t context_rows = own_context ? sizes->num_queries : 0, floats = 0;
    bool weighs = request->need_weights != ATTN_WEIGHTS_NONE;

    plan->num_threads = request->parallel != NULL ? request->parallel->num_threads : 1;
    if (plan->kind == PLAN_RUN &&
        !size_mul(sizes->num_queries, info->out_size, &sizes->outputs))
        return false;
    if (!plan_thread(model, request, plan) ||
        !reserve_converted(model, sizes, &floats, &plan->converted) ||
        !reserve_floats(&floats, sizes->num_queries, plan->score_width, &plan->queries) ||
        !reserve_floats(&floats, sizes->num_keys, plan->score_width, &plan->keys) ||
        !reserve_floats(&floats, sizes->num_keys, plan->hidden, &plan->values) ||
        !reserve_floats(&floats, context_rows, plan->hidden, &plan->context) ||
        !reserve_floats(&floats, 3 * PLAN_RANGES_MAX(info->num_heads),
                        sizeof(struct range) / sizeof(float), &plan->ranges) ||
        !reserve_floats(&floats, request->num_sequences + 1,
                        sizeof(size_t) / sizeof(float), &plan->first_parts) ||
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
    return 2 * counted * (double)linear->in * (double)linear->out;
}

/* Counts the operations of the attention, and of all three steps. */
static void count_flops(const attn_model *model, const attn_request *request,
                        struct plan *plan) {
    const struct engine *engine = &model->engine;
    size_t queries = plan->sizes.num_queries, keys = plan->sizes.num_keys;
    double score = engine->additive_score != NULL ? TANH_FLOPS : 2;
    size_t num_heads = model->info.num_heads, num_summed = num_heads;
    size_t num_scored = num_heads;

    for (size_t h = 0; request->head_mask != NULL && h < num_heads; h++) {
        bool left_out = mask_head_factor(request, h) == 0.0F;
        num_summed -= left_out;
        num_scored -= left_out && !weighs_head(plan, request, h);
    }
    double summed = (double)num_summed / (double)num_heads; /* share of the heads */
    double scored = (double)num_scored / (double)num_heads;

    plan->attend_flops = plan->pairs * (scored * score * (double)plan->score_width +
                                        summed * 2 * (double)plan->hidden);
    double flops = plan->attend_flops + summed * linear_flops(&engine->to_value, keys);
    if (plan->longest_key_len > 1) /* else no score matters */
        flops += scored * (linear_flops(&engine->to_query, queries) +
                           linear_flops(&engine->to_key, keys));
    if (plan->kind == PLAN_RUN && model->info.output_projection)
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
