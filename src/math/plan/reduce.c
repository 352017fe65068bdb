/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: checks what weights are to be reduced to. */
#include "math/plan/parts.h"

#include "base/error.h"
#include "base/pace.h"

#define RANGE_STEPS 4 /* of checking one */

/* Checks ranges [count][2] of `key_len` keys; 0, 0 may be none. `name` says what they
 * are. */
static attn_status check_ranges(const size_t *ranges, size_t count, size_t key_len,
                                bool none, const char *name, attn_error *ret_error) {
    for (size_t i = 0; i < count; i++) {
        size_t first = ranges[2 * i], end = ranges[2 * i + 1];
        pace_add(RANGE_STEPS);
        if ((first >= end && !(none && first == 0 && end == 0)) || end > key_len)
            return error_set(
                ret_error, ATTN_E_VALUE,
                "%s %zu is %zu to %zu: give a first key and a larger end, at "
                "most %zu",
                name, i, first, end, key_len);
    }
    return ATTN_OK;
}

/* Whether each sequence has as many queries as the first. */
static bool has_equal_queries(const attn_request *request) {
    for (size_t s = 1; s < request->num_sequences; s++) {
        pace_add(1);
        if (request->query_lens[s] != request->query_lens[0])
            return false;
    }
    return true;
}

attn_status plan_check_reductions(const attn_request *request, attn_error *ret_error) {
    const attn_reductions *reduce = &request->reduce;
    const size_t *key_lens = request->key_lens, *target = reduce->targets;
    size_t shortest = results_shortest(key_lens, request->num_sequences);
    size_t num_spans = reduce->spans != NULL ? reduce->num_spans : 0;
    size_t num_top_in = reduce->top_in != NULL ? reduce->num_top_in : 0;
    size_t lists = reduce->spans_per_sequence ? request->num_sequences : 1;
    attn_status status = ATTN_OK;

    for (size_t s = 0; s < lists && status == ATTN_OK; s++)
        status = check_ranges(reduce->spans + 2 * s * num_spans, num_spans,
                              reduce->spans_per_sequence ? key_lens[s] : shortest, false,
                              "span", ret_error);
    for (size_t s = 0; target != NULL && s < request->num_sequences && status == ATTN_OK;
         s++) {
        status = check_ranges(target, request->query_lens[s], key_lens[s], true, "target",
                              ret_error);
        target += 2 * request->query_lens[s];
    }
    if (status == ATTN_OK && reduce->row_weights != NULL && !has_equal_queries(request))
        return error_set(ret_error, ATTN_E_VALUE,
                         "row_weights are given, and sequences have several numbers of "
                         "queries: give one sequence, or some of equal lengths");
    if (status == ATTN_OK && num_top_in > ATTN_TOP_RANGES_MAX)
        return error_set(ret_error, ATTN_E_VALUE,
                         "top_in has %zu ranges, but may have %d at most", num_top_in,
                         ATTN_TOP_RANGES_MAX);
    if (status == ATTN_OK)
        status = check_ranges(reduce->top_in, num_top_in, shortest, false,
                              "range of top_in", ret_error);
    if (status == ATTN_OK && reduce->top_k > 0 &&
        reduce->top_k > results_top_max(request))
        return error_set(
            ret_error, ATTN_E_VALUE, "top_k is %zu, but %s only %zu keys", reduce->top_k,
            reduce->top_in != NULL ? "a range of top_in has" : "a sequence has",
            results_top_max(request));
    return status;
}
