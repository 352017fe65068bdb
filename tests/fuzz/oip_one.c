/* SPDX-License-Identifier: Apache-2.0 */
#include "oip_one.h"

#include "wire/oip/oip.h"

#include <jansson.h>
#include <math.h>

#define REPLY_MAX ((size_t)20000) /* numbers; larger replies are not written */

void oip_check(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

struct fixture *oip_fixture(void) {
    static void *fixture;
    if (fixture == NULL)
        oip_check(fixture_setup(&fixture) == 0, "no memory");
    return fixture;
}

void oip_check_problem(const struct wire_problem *problem) {
    struct buf body;
    buf_init(&body, 1 << 16);
    oip_check(problem->status == 400, "another status");
    oip_check(wire_oip_error_format.print(problem, &body) == ATTN_OK,
              "a problem too long");
    json_t *root = json_loadb(body.data, body.size, JSON_REJECT_DUPLICATES, NULL);
    oip_check(json_is_string(json_object_get(root, "error")),
              "a problem that is no JSON");
    json_decref(root);
    buf_deinit(&body);
}

/* --- what was read --- */

static size_t sum(const size_t *lens, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        oip_check(lens[i] > 0 && lens[i] == lens[0], "sequences that differ");
        total += lens[i];
    }
    return total;
}

/* Reads all of them, so that ASan sees whether they are there. */
static void check_numbers(const float *numbers, size_t count, bool finite) {
    bool all = true;
    for (size_t i = 0; i < count; i++)
        all &= isfinite(numbers[i]) != 0;
    oip_check(all || !finite, "a number that is not finite");
}

static void check_call(const struct wire_request *request, bool finite) {
    const attn_request *batch = &request->batch;
    const attn_model_info *info = attn_model_get_info(request->model);
    size_t queries = sum(batch->query_lens, batch->num_sequences);
    size_t keys = sum(batch->key_lens, batch->num_sequences);
    oip_check(request->batched || batch->num_sequences == 1, "sequences without an axis");
    check_numbers(batch->queries, queries * info->query_size, finite);
    check_numbers(batch->keys, keys * info->key_size, finite);
    check_numbers(batch->values, keys * info->value_size, finite);
    if (batch->head_mask != NULL)
        check_numbers(batch->head_mask, info->num_heads, finite);
    size_t lens = batch->valid_lens_per_query ? queries : batch->num_sequences;
    for (size_t i = 0; batch->valid_lens != NULL && i < lens; i++)
        oip_check(batch->valid_lens[i] <= batch->key_lens[0], "a length over its keys");
}

/* --- the reply --- */

static void check_reply(const char *text, size_t size, const struct wire_reply_head *head,
                        const struct wire_oip_reply *wanted) {
    bool binary = head->json_size != WIRE_NO_SIZE;
    oip_check(binary == (head->size != WIRE_NO_SIZE), "one size of two");
    oip_check(!binary || head->size == size, "another size than was told");
    json_t *root =
        json_loadb(text, binary ? head->json_size : size, JSON_REJECT_DUPLICATES, NULL);
    oip_check(root != NULL, "a reply that is no JSON");
    oip_check(json_array_size(json_object_get(root, "outputs")) == wanted->num_outputs,
              "another number of outputs");
    oip_check((wanted->id != NULL) == (json_object_get(root, "id") != NULL), "no id");
    json_decref(root);
}

/* As attn_plan() would, without kernels. A body is short enough that nothing wraps. */
static attn_sizes sizes_of(const struct wire_request *request) {
    const attn_request *batch = &request->batch;
    const attn_model_info *info = attn_model_get_info(request->model);
    size_t queries = batch->num_sequences * batch->query_lens[0];
    size_t planes = batch->need_weights == ATTN_WEIGHTS_ALL    ? info->num_heads
                    : batch->need_weights == ATTN_WEIGHTS_MEAN ? 1
                                                               : 0;
    return (attn_sizes){.num_queries = queries,
                        .outputs = queries * info->out_size,
                        .weights = planes * queries * batch->key_lens[0]};
}

/* Writes a reply of made-up numbers, in pieces. */
static void answer(const struct wire_request *request, struct arena *arena) {
    const attn_sizes sizes = sizes_of(request);
    attn_result result;
    struct wire_problem problem;
    struct wire_reply_head head;
    size_t bound = wire_oip_writer.bound(request, &sizes), size = 0, written;
    if (sizes.outputs + sizes.weights > REPLY_MAX)
        return;
    result.outputs = calloc(sizes.outputs, sizeof(float));
    result.weights = sizes.weights > 0 ? calloc(sizes.weights, sizeof(float)) : NULL;
    for (size_t i = 0; i < sizes.outputs; i++)
        result.outputs[i] = (float)i / 7 - 1e-20F;
    size_t used = arena->used;
    void *encoder = wire_oip_writer.begin(arena, request, &result, &head, &problem);
    oip_check(encoder != NULL, "a reply that cannot be begun");
    oip_check(arena->used - used <= wire_oip_writer.memory(request) + 4096 + 128,
              "more memory for the reply than foreseen");
    char *text = malloc(bound + WIRE_PIECE_MIN);
    size_t piece = WIRE_PIECE_MIN + bound % 333;
    while ((written = wire_oip_writer.fill(encoder, text + size, piece)) > 0) {
        size += written;
        oip_check(size <= bound, "more than the bound");
        if (piece > bound + WIRE_PIECE_MIN - size)
            piece = bound + WIRE_PIECE_MIN - size;
    }
    check_reply(text, size, &head, request->oip);
    free(text);
    free(result.outputs);
    free(result.weights);
}

/* wire_input.reserve: notes what was asked for. */
static bool note(void *context, size_t bytes, struct wire_problem *problem) {
    (void)problem;
    *(size_t *)context = bytes;
    return true;
}

void oip_try(const uint8_t *data, size_t size, size_t json_size) {
    struct fixture *fixture = oip_fixture();
    char *body = malloc(size > 0 ? size : 1); /* so that a read past the end is seen */
    memcpy(body, data, size);
    for (int i = 0; i < NUM_MODELS; i++) {
        size_t reserved = 0;
        arena_reset(&fixture->arena);
        const struct wire_input input = {
            .body = body,
            .size = size,
            .json_size = json_size,
            .models = (const attn_model *const *)&fixture->models[i],
            .num_models = 1,
            .arena = &fixture->arena,
            .reserve = note,
            .context = &reserved};
        bool read = wire_oip_read(&input, &fixture->request, &fixture->problem);
        oip_check(fixture->arena.used <= reserved, "more memory than foreseen");
        if (!read) {
            oip_check_problem(&fixture->problem);
            continue;
        }
        check_call(&fixture->request, json_size == WIRE_NO_SIZE);
        answer(&fixture->request, &fixture->arena);
    }
    free(body);
}
