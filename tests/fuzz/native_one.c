/* SPDX-License-Identifier: Apache-2.0 */
#include "native_one.h"

#include <jansson.h>
#include <math.h>

void native_check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static size_t sum(const size_t *lens, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        native_check(lens[i] > 0, "an empty sequence");
        total += lens[i];
    }
    return total;
}

static void check_numbers(const float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        native_check(isfinite(numbers[i]), "a number that is not finite");
}

void native_check_call(const struct wire_request *request) {
    const attn_request *batch = &request->batch;
    const attn_model_info *info = attn_model_get_info(request->model);
    size_t queries = sum(batch->query_lens, batch->num_sequences);
    size_t keys = sum(batch->key_lens, batch->num_sequences), query = 0;
    native_check(request->batched || batch->num_sequences == 1,
                 "sequences without a batch axis");
    check_numbers(batch->queries, queries * info->query_size);
    check_numbers(batch->keys, keys * info->key_size);
    check_numbers(batch->values, keys * info->value_size);
    if (batch->head_mask != NULL)
        check_numbers(batch->head_mask, info->num_heads);
    for (size_t b = 0; batch->valid_lens != NULL && b < batch->num_sequences; b++) {
        size_t count = batch->valid_lens_per_query ? batch->query_lens[b] : 1;
        for (size_t i = 0; i < count; i++)
            native_check(batch->valid_lens[query++] <= batch->key_lens[b],
                         "a length over its keys");
    }
    for (size_t i = 0; i < request->selection.num_heads; i++)
        native_check(request->selection.heads[i] < info->num_heads,
                     "a head that there is not");
    for (size_t i = 0; i < request->selection.num_queries; i++) {
        for (size_t b = 0; b < batch->num_sequences; b++)
            native_check(request->selection.queries[i] < batch->query_lens[b],
                         "no such query");
    }
}

void native_check_problem(const struct wire_problem *problem) {
    struct buf body;
    buf_init(&body, 1 << 16);
    native_check(problem->status == 400 || problem->status == 404, "another status");
    native_check(wire_problem_print(problem, &body) == ATTN_OK, "a problem too long");
    json_t *root = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
    native_check(root != NULL, "a problem that is no JSON");
    json_decref(root);
    buf_deinit(&body);
}

struct fixture *native_fixture(void) {
    static void *fixture;
    if (fixture == NULL)
        native_check(fixture_setup(&fixture) == 0, "no memory");
    return fixture;
}
