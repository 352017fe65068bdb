/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_native.c: any body is decoded to numbers that are all there, in the memory that
 * was foreseen, or refused with a problem that is JSON itself. */
#include "fuzz.h"
#include "wire_fixture.h"

#include <jansson.h>
#include <math.h>

static void check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static size_t sum(const size_t *lens, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        check(lens[i] > 0, "an empty sequence");
        total += lens[i];
    }
    return total;
}

static void check_numbers(const float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        check(isfinite(numbers[i]), "a number that is not finite");
}

static void check_call(const struct wire_call *call) {
    const attn_request *request = &call->request;
    const attn_model_info *info = attn_model_get_info(call->model);
    size_t queries = sum(request->query_lens, request->num_sequences);
    size_t keys = sum(request->key_lens, request->num_sequences);
    check(call->batched || request->num_sequences == 1, "sequences without a batch axis");
    check_numbers(request->queries, queries * info->query_size);
    check_numbers(request->keys, keys * info->key_size);
    check_numbers(request->values, keys * info->value_size);
    if (request->head_mask != NULL)
        check_numbers(request->head_mask, info->num_heads);
    size_t query = 0;
    for (size_t b = 0; request->valid_lens != NULL && b < request->num_sequences; b++) {
        size_t count = request->valid_lens_per_query ? request->query_lens[b] : 1;
        for (size_t i = 0; i < count; i++)
            check(request->valid_lens[query++] <= request->key_lens[b],
                  "a length over its keys");
    }
}

static void check_problem(const struct wire_problem *problem) {
    struct buf body;
    buf_init(&body, 1 << 16);
    check(problem->status == 400 || problem->status == 404, "another status");
    check(wire_problem_print(problem, &body) == ATTND_OK, "a problem too long");
    json_t *root = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
    check(root != NULL, "a problem that is no JSON");
    json_decref(root);
    buf_deinit(&body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void *fixture_made;
    if (fixture_made == NULL)
        check(fixture_setup(&fixture_made) == 0, "no memory");
    struct fixture *fixture = fixture_made;
    struct wire_native_scan scan;
    char *body = malloc(size > 0 ? size : 1); /* so that a read past the end is seen */
    memcpy(body, data, size);
    arena_reset(&fixture->arena);
    bool decoded = wire_native_scan(body, size, &scan, &fixture->problem);
    if (decoded) {
        decoded = wire_native_decode(
            body, &scan, (const attn_model *const *)fixture->models, NUM_MODELS,
            &fixture->arena, &fixture->call, &fixture->problem);
        check(fixture->arena.used <= scan.decode_bytes, "more memory than foreseen");
    }
    if (decoded)
        check_call(&fixture->call);
    else
        check_problem(&fixture->problem);
    free(body);
    return 0;
}
