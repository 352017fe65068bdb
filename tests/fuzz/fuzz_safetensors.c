/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c: any body, read as safetensors, gives a call whose numbers are all
 * there, in the memory that was asked for, or a problem that is JSON itself. */
#include "fuzz.h"
#include "wire/safetensors.h"
#include "wire_fixture.h"

#include <jansson.h>
#include <math.h>

static void check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

/* wire_input.reserve */
static bool reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    size_t *reserved = context;
    (void)ret_problem;
    *reserved += bytes;
    return true;
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
    size_t keys = sum(request->key_lens, request->num_sequences), query = 0;
    check(call->batched || request->num_sequences == 1, "sequences without a batch axis");
    check_numbers(request->queries, queries * info->query_size);
    check_numbers(request->keys, keys * info->key_size);
    check_numbers(request->values, keys * info->value_size);
    if (request->head_mask != NULL)
        check_numbers(request->head_mask, info->num_heads);
    for (size_t b = 0; request->valid_lens != NULL && b < request->num_sequences; b++) {
        size_t count = request->valid_lens_per_query ? request->query_lens[b] : 1;
        for (size_t i = 0; i < count; i++)
            check(request->valid_lens[query++] <= request->key_lens[b],
                  "a length over its keys");
    }
    for (size_t i = 0; i < call->selection.num_heads; i++)
        check(call->selection.heads[i] < info->num_heads, "a head that there is not");
    for (size_t i = 0; i < call->selection.num_queries; i++) {
        for (size_t b = 0; b < request->num_sequences; b++)
            check(call->selection.queries[i] < request->query_lens[b], "no such query");
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
    size_t reserved = 0;
    char *body = malloc(size > 0 ? size : 1); /* so that a read past the end is seen */
    memcpy(body, data, size);
    arena_reset(&fixture->arena);
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .models = (const attn_model *const *)fixture->models,
                                     .num_models = NUM_MODELS,
                                     .arena = &fixture->arena,
                                     .reserve = reserve,
                                     .context = &reserved};
    if (wire_safetensors_read(&input, &fixture->call, &fixture->problem))
        check_call(&fixture->call);
    else
        check_problem(&fixture->problem);
    check(fixture->arena.used <= reserved, "more memory than was asked for");
    free(body);
    return 0;
}
