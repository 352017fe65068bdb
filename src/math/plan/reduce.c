/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: checks what weights are to be reduced to. */
#include "math/plan/parts.h"

#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"

#define RANGE_STEPS 4 /* of checking one */

/* Checks ranges [count][2] of `key_len` keys. `name` says what they are. */
static attn_status check_ranges(const size_t *ranges, size_t count, size_t key_len,
                                const char *name, attn_error *ret_error) {
    for (size_t i = 0; i < count; i++) {
        size_t first = ranges[2 * i], end = ranges[2 * i + 1];
        pace_add(RANGE_STEPS);
        if (first >= end || end > key_len)
            return error_set(
                ret_error, ATTN_E_VALUE,
                "%s %zu is %zu to %zu: give a first key and a larger end, at "
                "most %zu",
                name, i, first, end, key_len);
    }
    return ATTN_OK;
}

/* Checks the targets of one sequence, of which a row may have none. */
static attn_status check_targets(const size_t *targets, size_t count, size_t key_len,
                                 attn_error *ret_error) {
    attn_status status = ATTN_OK;

    for (size_t q = 0; q < count && status == ATTN_OK; q++) {
        const size_t *target = targets + 2 * q;
        pace_add(1);
        if (target[0] != 0 || target[1] != 0)
            status = check_ranges(target, 1, key_len, "target", ret_error);
    }
    return status;
}

/* Checks that each range has top_k keys, or else that all sequences have. */
static attn_status check_top(const attn_reductions *reduce, size_t shortest,
                             attn_error *ret_error) {
    bool ranges = reduce->top_in != NULL;
    size_t least = shortest;

    for (size_t i = 0; ranges && i < reduce->num_top_in; i++)
        least = size_min(least, reduce->top_in[2 * i + 1] - reduce->top_in[2 * i]);
    if (reduce->top_k <= least)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE, "top_k is %zu, but %s only %zu keys",
                     reduce->top_k, ranges ? "a range of top_in has" : "a sequence has",
                     least);
}

attn_status plan_check_reductions(const attn_request *request, attn_error *ret_error) {
    const attn_reductions *reduce = &request->reduce;
    bool shared = !reduce->spans_per_sequence;
    size_t shortest = SIZE_MAX, first_query = 0;
    attn_status status = ATTN_OK;

    for (size_t s = 0; s < request->num_sequences && status == ATTN_OK; s++) {
        size_t query_len = request->query_lens[s], key_len = request->key_lens[s];
        shortest = size_min(shortest, key_len);
        if (reduce->spans != NULL && !shared)
            status = check_ranges(reduce->spans + 2 * s * reduce->num_spans,
                                  reduce->num_spans, key_len, "span", ret_error);
        if (reduce->targets != NULL && status == ATTN_OK)
            status = check_targets(reduce->targets + 2 * first_query, query_len, key_len,
                                   ret_error);
        first_query += query_len;
    }
    if (status == ATTN_OK && reduce->spans != NULL && shared)
        status =
            check_ranges(reduce->spans, reduce->num_spans, shortest, "span", ret_error);
    if (status == ATTN_OK && reduce->top_in != NULL &&
        reduce->num_top_in > ATTN_TOP_RANGES_MAX)
        return error_set(ret_error, ATTN_E_VALUE,
                         "top_in has %zu ranges, but may have %d at most",
                         reduce->num_top_in, ATTN_TOP_RANGES_MAX);
    if (status == ATTN_OK && reduce->top_in != NULL)
        status = check_ranges(reduce->top_in, reduce->num_top_in, shortest,
                              "range of top_in", ret_error);
    return status == ATTN_OK ? check_top(reduce, shortest, ret_error) : status;
}
