/* SPDX-License-Identifier: Apache-2.0 */
/* check.c: the checks that the fuzz targets of all protocols share. */
#include "check.h"

#include "base/dtype.h"

#include <jansson.h>
#include <math.h>

void fuzz_check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

struct fixture *fuzz_fixture(void) {
    static void *fixture;
    if (fixture == NULL)
        fuzz_check(fixture_setup(&fixture) == 0, "no memory");
    return fixture;
}

char *fuzz_copy(const uint8_t *data, size_t size) {
    char *copy = malloc(size > 0 ? size : 1);
    fuzz_check(copy != NULL, "no memory");
    memcpy(copy, data, size);
    return copy;
}

bool fuzz_reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    size_t *reserved = context;
    (void)ret_problem;
    *reserved += bytes;
    return true;
}

/* --- requests --- */

static size_t sum_lens(const size_t *lens, size_t count) {
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        fuzz_check(lens[i] > 0, "an empty sequence");
        sum += lens[i];
    }
    return sum;
}

/* Reads all numbers, so that a sanitizer finds those that are missing. */
static void check_numbers(const float *numbers, size_t count, bool finite) {
    bool all_finite = true;
    for (size_t i = 0; i < count; i++)
        all_finite &= isfinite(numbers[i]) != 0;
    fuzz_check(all_finite || !finite, "a number that is not finite");
}

static void check_valid_lens(const attn_request *batch) {
    size_t i = 0;
    for (size_t b = 0; batch->valid_lens != NULL && b < batch->num_sequences; b++) {
        size_t count = batch->valid_lens_per_query ? batch->query_lens[b] : 1;
        for (size_t end = i + count; i < end; i++)
            fuzz_check(batch->valid_lens[i] <= batch->key_lens[b],
                       "a length over its keys");
    }
}

static void check_prefix_lens(const attn_request *batch) {
    for (size_t b = 0; batch->prefix_lens != NULL && b < batch->num_sequences; b++)
        fuzz_check(batch->prefix_lens[b] <= batch->key_lens[b], "a prefix over its keys");
}

static void check_positions(const size_t *positions, size_t count) {
    for (size_t i = 0; positions != NULL && i < count; i++)
        fuzz_check(positions[i] <= ATTN_POSITION_MAX, "a position over its limit");
}

static void check_selection(const struct wire_request *request) {
    const attn_request *batch = &request->batch;
    for (size_t i = 0; i < batch->num_weights_heads; i++)
        fuzz_check(batch->weights_heads[i] <
                       attn_model_get_info(request->model)->num_heads,
                   "a head that the model does not have");
    for (size_t i = 0; i < batch->num_weights_queries; i++) {
        for (size_t b = 0; b < batch->num_sequences; b++)
            fuzz_check(batch->weights_queries[i] < (ptrdiff_t)batch->query_lens[b] &&
                           batch->weights_queries[i] >= -(ptrdiff_t)batch->query_lens[b],
                       "a query that a sequence does not have");
    }
}

/* Checks what the queries of a sequence attend to; the arrays begin with its rows. */
static void check_attended(const attn_request *batch, const attn_model_info *info,
                           size_t sequence, size_t first_query, const float *queries,
                           const float *keys, const float *values) {
    size_t num_keys = batch->key_lens[sequence];
    for (size_t q = 0; q < batch->query_lens[sequence]; q++) {
        size_t valid = num_keys;
        if (batch->valid_lens != NULL)
            valid = batch->valid_lens[batch->valid_lens_per_query ? first_query + q
                                                                  : sequence];
        size_t end = batch->prefix_lens != NULL && batch->prefix_lens[sequence] > q + 1
                         ? batch->prefix_lens[sequence]
                         : q + 1;
        if (batch->causal && valid > end)
            valid = end;
        if (valid > 0)
            check_numbers(queries + q * info->width.query, info->width.query, true);
        check_numbers(keys, valid * info->width.key, true);
        if (values != NULL)
            check_numbers(values, (valid > 0 ? valid : num_keys) * info->width.value,
                          true);
    }
}

static void check_all_attended(const attn_request *batch, const attn_model_info *info,
                               const float *keys) {
    size_t query = 0, key = 0;
    if (batch->positions != NULL || batch->key_positions != NULL)
        return; /* other keys are attended to */
    for (size_t b = 0; b < batch->num_sequences; b++) {
        check_attended(batch, info, b, query, batch->queries + query * info->width.query,
                       keys + key * info->width.key,
                       batch->values != NULL ? batch->values + key * info->width.value
                                             : NULL);
        query += batch->query_lens[b];
        key += batch->key_lens[b];
    }
}

/* Checks `count` ranges of at most `keys` keys; with `empty`, 0, 0 is none. */
static void check_ranges(const size_t *ranges, size_t count, size_t keys, bool empty) {
    for (size_t i = 0; i < count; i++) {
        size_t first = ranges[2 * i], end = ranges[2 * i + 1];
        fuzz_check((first < end && end <= keys) || (empty && first == 0 && end == 0),
                   "a range that its sequence does not have");
    }
}

static void check_reductions(const attn_request *batch) {
    const attn_reductions *reduce = &batch->reduce;
    size_t num_spans = reduce->spans != NULL ? reduce->num_spans : 0, query = 0;
    for (size_t b = 0; b < batch->num_sequences; b++) {
        size_t keys = batch->key_lens[b], queries = batch->query_lens[b];
        size_t first = reduce->spans_per_sequence ? b * num_spans : 0;
        if (reduce->spans != NULL)
            check_ranges(reduce->spans + 2 * first, num_spans, keys, false);
        if (reduce->top_in != NULL)
            check_ranges(reduce->top_in, reduce->num_top_in, keys, false);
        if (reduce->targets != NULL)
            check_ranges(reduce->targets + 2 * query, queries, keys, true);
        fuzz_check(reduce->top_k <= keys, "more of the largest than keys");
        query += queries;
    }
}

/* Reads the bias of every score. */
static void check_bias(const attn_request *batch, size_t num_heads) {
    for (size_t b = 0; batch->bias != NULL && b < batch->num_sequences; b++) {
        for (size_t h = 0; h < num_heads; h++) {
            for (size_t q = 0; q < batch->query_lens[b]; q++) {
                const float *row = batch->bias + b * batch->bias_sequence_ld +
                                   h * batch->bias_head_ld + q * batch->bias_row_ld;
                for (size_t k = 0; k < batch->key_lens[b]; k++)
                    fuzz_check(row[k] < INFINITY, "a bias that is not a number");
            }
        }
    }
}

/* Returns the keys as float32, which the caller frees. */
static float *copy_keys(const attn_request *batch, size_t count) {
    float *keys = malloc(count * sizeof *keys);
    if (batch->encoded_keys != NULL)
        dtype_find(batch->keys_type)->to_float(batch->encoded_keys, count, keys);
    else
        memcpy(keys, batch->keys, count * sizeof *keys);
    return keys;
}

void fuzz_check_request(const struct wire_request *request, bool finite) {
    const attn_request *batch = &request->batch;
    const attn_model_info *info = attn_model_get_info(request->model);
    size_t queries = sum_lens(batch->query_lens, batch->num_sequences);
    size_t keys = sum_lens(batch->key_lens, batch->num_sequences);
    float *key_numbers = copy_keys(batch, keys * info->width.key);

    fuzz_check(request->batched || batch->num_sequences == 1,
               "sequences without a batch axis");
    check_numbers(batch->queries, queries * info->width.query, finite);
    check_numbers(key_numbers, keys * info->width.key, finite);
    if (batch->values != NULL)
        check_numbers(batch->values, keys * info->width.value, finite);
    if (batch->head_mask != NULL)
        check_numbers(batch->head_mask, info->num_heads, true);
    check_valid_lens(batch);
    check_prefix_lens(batch);
    check_positions(batch->positions, queries);
    check_positions(batch->key_positions, keys);
    fuzz_check(batch->window <= ATTN_POSITION_MAX, "a window over its limit");
    check_all_attended(batch, info, key_numbers);
    check_selection(request);
    check_reductions(batch);
    check_bias(batch, info->num_heads);
    free(key_numbers);
}

/* --- problems --- */

void fuzz_check_problem(const struct wire_problem *problem,
                        const struct wire_error_format *format) {
    struct buf body;
    buf_init(&body, 1 << 16);
    fuzz_check(problem->status == 400 || problem->status == 404, "another status");
    format->print(problem, &body);
    fuzz_check(body.status == ATTN_OK, "a problem that is too long");

    json_t *root = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
    fuzz_check(root != NULL, "a problem that is not JSON");
    const char *key = format == &wire_problem_format ? "detail" : "error";
    fuzz_check(json_is_string(json_object_get(root, key)), "a problem without its text");
    json_decref(root);
    buf_deinit(&body);
}
