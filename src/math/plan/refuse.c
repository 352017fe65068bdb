/* SPDX-License-Identifier: Apache-2.0 */
/* refuse.c: checks a request, in the order of its errors: what the layer takes; of each
 * sequence its lengths, and then its entries; what is selected; what is reduced. */
#include "math/plan/parts.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "math/model.h"
#include "math/packed.h"

#define RANGE_STEPS 4 /* of checking one */

attn_status plan_check_taken(const struct plan *plan, attn_error *ret_error) {
    const attn_request *request = plan->request;
    const struct attn_packed *packed = request->packed;
    bool given = plan->model->info.projection.given;
    bool encoded = request->encoded_keys != NULL;
    const struct {
        bool refused;
        attn_status status;
        const char *text;
    } rules[] = {
        {request->num_sequences == 0, ATTN_E_SHAPE, "the batch is empty"},
        {(encoded || packed != NULL) && !given, ATTN_E_UNSUPPORTED,
         "a layer with projections takes neither encoded nor packed keys"},
        {request->bias != NULL && plan->kind == PLAN_HEADS, ATTN_E_UNSUPPORTED,
         "what heads do is found without a bias"},
        {packed != NULL &&
             (request->num_sequences != 1 || request->key_lens[0] != packed->num_keys),
         ATTN_E_SHAPE, "packed keys are one sequence"},
        {(request->need_contributions || request->need_projections) && given,
         ATTN_E_UNSUPPORTED,
         "contributions and projections need a layer with projections"},
        {(request->axis_positions != NULL || request->axis_key_positions != NULL) &&
             plan->model->info.rotation.axes != ATTN_AXES,
         ATTN_E_UNSUPPORTED, "positions of three axes need a rotation with sections"},
    };

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (rules[i].refused)
            return error_set(ret_error, rules[i].status, "%s", rules[i].text);
    }
    const struct dtype *type = encoded ? dtype_find(request->keys_type) : NULL;
    if (encoded && (type == NULL || type->to_float == NULL))
        return error_set(ret_error, ATTN_E_VALUE,
                         "keys of type %s are unknown; use BF16, F16 or F32",
                         request->keys_type);
    return ATTN_OK;
}

attn_status plan_check_lens(const struct plan *plan, size_t sequence,
                            attn_error *ret_error) {
    size_t query_len = plan->request->query_lens[sequence];
    size_t key_len = plan->request->key_lens[sequence];
    size_t limit = plan->model->info.context_length;

    if (query_len == 0 || key_len == 0)
        return error_set(ret_error, ATTN_E_SHAPE, "sequence %zu is empty", sequence);
    if (limit > 0 && size_max(query_len, key_len) > limit)
        return error_set(ret_error, ATTN_E_SHAPE,
                         "sequence %zu is longer than the context length %zu", sequence,
                         limit);
    return ATTN_OK;
}

attn_status plan_check_entries(const attn_request *request, size_t sequence,
                               size_t first_query, size_t first_key,
                               attn_error *ret_error) {
    size_t queries = request->query_lens[sequence], keys = request->key_lens[sequence];
    bool per_query = request->valid_lens_per_query;
    const struct {
        const char *name;
        const size_t *entries;
        size_t first, count;
        bool positions; /* else lengths over the keys */
    } lists[] = {
        {"prefix_lens", request->prefix_lens, sequence, 1, false},
        {"valid_lens", request->valid_lens, per_query ? first_query : sequence,
         per_query ? queries : 1, false},
        {"positions", request->positions, first_query, queries, true},
        {"key_positions", request->key_positions, first_key, keys, true},
        {"axis_positions", request->axis_positions, first_query * ATTN_AXES,
         queries * ATTN_AXES, true},
        {"axis_key_positions", request->axis_key_positions, first_key * ATTN_AXES,
         keys * ATTN_AXES, true},
    };

    for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++) {
        for (size_t i = 0; lists[l].entries != NULL && i < lists[l].count; i++) {
            size_t entry = lists[l].entries[lists[l].first + i];
            pace_add(1);
            if (!lists[l].positions && entry > keys)
                return error_set(ret_error, ATTN_E_VALUE,
                                 "%s of sequence %zu is over its %zu keys", lists[l].name,
                                 sequence, keys);
            if (lists[l].positions && entry > ATTN_POSITION_MAX)
                return error_set(ret_error, ATTN_E_VALUE,
                                 "%s of sequence %zu has %zu, but positions end at %d",
                                 lists[l].name, sequence, entry, ATTN_POSITION_MAX);
        }
    }
    return ATTN_OK;
}

attn_status plan_check_selected(const struct plan *plan, attn_error *ret_error) {
    const attn_request *request = plan->request;
    size_t num_heads = plan->model->info.num_heads;

    for (size_t i = 0; plan->wanted.selects_heads && i < request->num_weights_heads;
         i++) {
        pace_add(1);
        if (request->weights_heads[i] >= num_heads)
            return error_set(ret_error, ATTN_E_VALUE,
                             "weights of head %zu are selected, but the last one is %zu",
                             request->weights_heads[i], num_heads - 1);
    }
    if (request->weights_queries == NULL || !plan_wants(plan, RESULT_SELECTED))
        return ATTN_OK;
    size_t shortest = results_shortest(request->query_lens, request->num_sequences);
    for (size_t i = 0; i < request->num_weights_queries; i++) {
        ptrdiff_t query = request->weights_queries[i];
        pace_add(1);
        if (query >= (ptrdiff_t)shortest || query < -(ptrdiff_t)shortest)
            return error_set(ret_error, ATTN_E_VALUE,
                             "weights of query %td are selected, but the last one of the "
                             "shortest sequence is %zu",
                             query, shortest - 1);
    }
    return ATTN_OK;
}

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
    size_t lists = num_spans == 0               ? 0
                   : reduce->spans_per_sequence ? request->num_sequences
                                                : 1;
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
