/* SPDX-License-Identifier: Apache-2.0 */
#include "math/plan.h"

#include "base/error.h"
#include "base/size.h"
#include "math/model.h"

#include <limits.h>

/* Checks valid_lens of one sequence, whose first query is `first_query` of the batch. */
static bool valid_lens_fit(const attn_request *request, size_t sequence,
                           size_t first_query) {
    if (request->valid_lens == NULL)
        return true;
    size_t key_len = request->key_lens[sequence];
    if (!request->valid_lens_per_query)
        return request->valid_lens[sequence] <= key_len;
    for (size_t q = 0; q < request->query_lens[sequence]; q++) {
        if (request->valid_lens[first_query + q] > key_len)
            return false;
    }
    return true;
}

/* Checks every sequence and adds up rows and weights. */
static attnd_status measure(const attn_model *model, const attn_request *request,
                            struct plan *plan, attnd_error *ret_error) {
    const attn_model_info *info = &model->info;
    attn_sizes *sizes = &plan->sizes;
    size_t matrices = request->need_weights == ATTN_WEIGHTS_ALL    ? info->num_heads
                      : request->need_weights == ATTN_WEIGHTS_MEAN ? 1
                                                                   : 0;
    if (request->num_sequences == 0)
        return error_set(ret_error, ATTND_E_SHAPE, "the batch is empty");
    for (size_t s = 0; s < request->num_sequences; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];
        if (query_len == 0 || key_len == 0)
            return error_set(ret_error, ATTND_E_SHAPE, "sequence %zu is empty", s);
        if (info->context_length > 0 &&
            (query_len > info->context_length || key_len > info->context_length))
            return error_set(ret_error, ATTND_E_SHAPE,
                             "sequence %zu is longer than the context length %zu", s,
                             info->context_length);
        /* Before anything else reads [sum of Tq] entries: their number must be known to
         * fit. */
        size_t first_query = sizes->num_queries, weights;
        if (!size_add(sizes->num_queries, query_len, &sizes->num_queries) ||
            !size_add(sizes->num_keys, key_len, &sizes->num_keys) ||
            sizes->num_queries > INT_MAX || sizes->num_keys > INT_MAX ||
            !size_mul(matrices, query_len, &weights) ||
            !size_add_mul(&sizes->weights, weights, key_len))
            return error_set(ret_error, ATTND_E_OVERFLOW, "the batch is too large");
        if (!valid_lens_fit(request, s, first_query))
            return error_set(ret_error, ATTND_E_VALUE,
                             "a valid_lens of sequence %zu is over its %zu keys", s,
                             key_len);
        if (key_len > plan->longest_key_len)
            plan->longest_key_len = key_len;
    }
    return ATTND_OK;
}

/* Gives the next [rows, columns] floats of scratch to *ret_offset. */
static bool place(size_t *floats, size_t rows, size_t columns, size_t *ret_offset) {
    size_t size;
    *ret_offset = *floats;
    return size_mul(rows, columns, &size) &&
           size_round_up(size, ATTN_ALIGNMENT / sizeof(float), &size) &&
           size_add(*floats, size, floats);
}

attnd_status plan_make(const attn_model *model, const attn_request *request,
                       struct plan *ret_plan, attnd_error *ret_error) {
    const attn_model_info *info = &model->info;
    struct plan plan = {.hidden = info->num_heads * info->head_size};
    attnd_status status = measure(model, request, &plan, ret_error);
    if (status != ATTND_OK)
        return status;
    attn_sizes *sizes = &plan.sizes;
    size_t query_rows = info->output_projection ? sizes->num_queries : 0;
    size_t longest = plan.longest_key_len, floats = 0;
    if (!size_mul(sizes->num_queries, info->out_size, &sizes->outputs) ||
        !place(&floats, query_rows, plan.hidden, &plan.queries) ||
        !place(&floats, sizes->num_keys, plan.hidden, &plan.keys) ||
        !place(&floats, sizes->num_keys, plan.hidden, &plan.values) ||
        !place(&floats, QUERY_BLOCK, longest, &plan.scores) ||
        !place(&floats, longest, info->additive_size, &plan.additive_keys) ||
        !place(&floats, QUERY_BLOCK, info->additive_size, &plan.additive_queries) ||
        !size_mul(floats, sizeof(float), &sizes->scratch_bytes))
        return error_set(ret_error, ATTND_E_OVERFLOW, "the batch is too large");
    *ret_plan = plan;
    return ATTND_OK;
}

attnd_status attn_plan(const attn_model *model, const attn_request *request,
                       attn_sizes *ret_sizes, attnd_error *ret_error) {
    struct plan plan;
    attnd_status status = plan_make(model, request, &plan, ret_error);
    if (status == ATTND_OK)
        *ret_sizes = plan.sizes;
    return status;
}
