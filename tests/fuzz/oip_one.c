/* SPDX-License-Identifier: Apache-2.0 */
/* oip_one.c: decodes one body of the Open Inference Protocol and writes a reply to it. */
#include "oip_one.h"

#include "wire/oip/oip.h"
#include "wire/reply.h"

#include <jansson.h>

/* Numbers of a tensor; larger replies are not written. */
#define REPLY_MAX ((size_t)20000)

/* Checks that sequences have one length, since shapes of this protocol say no more. */
static void check_equal_lens(const struct wire_request *request) {
    const attn_request *batch = &request->batch;
    for (size_t b = 1; b < batch->num_sequences; b++)
        fuzz_check(batch->query_lens[b] == batch->query_lens[0] &&
                       batch->key_lens[b] == batch->key_lens[0],
                   "sequences that differ in length");
}

static void check_reply(const char *text, size_t size, const struct wire_reply_head *head,
                        const struct wire_oip_reply *wanted) {
    bool binary = head->json_size != WIRE_NO_SIZE;
    fuzz_check(binary == (head->size != WIRE_NO_SIZE), "one size of two");
    fuzz_check(!binary || head->size == size, "another size than was announced");

    json_t *root =
        json_loadb(text, binary ? head->json_size : size, JSON_REJECT_DUPLICATES, NULL);
    fuzz_check(root != NULL, "a reply that is not JSON");
    fuzz_check(json_array_size(json_object_get(root, "outputs")) == wanted->num_outputs,
               "another number of outputs");
    fuzz_check((wanted->id != NULL) == (json_object_get(root, "id") != NULL), "no id");
    json_decref(root);
}

/* Returns how many numbers the largest tensor of the reply has. */
static size_t largest_tensor(const struct wire_request *request) {
    size_t count = 0, largest = 0;
    struct wire_reply reply;

    wire_reply_init(&reply, request, &(attn_result){0});
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        size_t numbers = reply.wanted.has[id] ? wire_reply_count(&reply, id) : 0;
        count += reply.wanted.has[id];
        largest = numbers > largest ? numbers : largest;
    }
    fuzz_check(count == request->oip->num_outputs, "another number of results");
    return largest;
}

/* Writes a reply of made-up numbers in pieces, and checks it. */
static void write_reply(const struct wire_request *request, struct arena *arena) {
    size_t count = largest_tensor(request);
    struct wire_problem problem;
    struct wire_reply_head head;
    if (count > REPLY_MAX)
        return;

    float *numbers = calloc(count, sizeof *numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = (float)i / 7 - 1e-20F;
    const attn_result result = {
        .outputs = numbers, .weights = numbers, .heads = numbers, .lse = numbers};

    size_t used = arena->used;
    void *encoder = wire_oip_writer.begin(arena, request, &result, &head, &problem);
    fuzz_check(encoder != NULL, "a reply that cannot be begun");
    fuzz_check(arena->used - used <= wire_oip_writer.memory(request) + 4096 + 128,
               "more memory for the reply than was announced");

    size_t bound = wire_oip_writer.bound(request), size = 0, written;
    char *text = malloc(bound + WIRE_PIECE_MIN);
    size_t piece = WIRE_PIECE_MIN + bound % 333;
    while ((written = wire_oip_writer.fill(encoder, text + size, piece)) > 0) {
        size += written;
        fuzz_check(size <= bound, "more than the bound");
        if (piece > bound + WIRE_PIECE_MIN - size)
            piece = bound + WIRE_PIECE_MIN - size;
    }
    check_reply(text, size, &head, request->oip);
    free(text);
    free(numbers);
}

void oip_try(const uint8_t *data, size_t size, size_t json_size) {
    struct fixture *fixture = fuzz_fixture();
    char *body = fuzz_copy(data, size);
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
            .reserve = fuzz_reserve,
            .context = &reserved};

        bool read = wire_oip_read(&input, &fixture->request, &fixture->problem);
        fuzz_check(fixture->arena.used <= reserved, "more memory than was reserved");
        if (!read) {
            fuzz_check_problem(&fixture->problem, &wire_oip_error_format);
            continue;
        }
        fuzz_check_request(&fixture->request, json_size == WIRE_NO_SIZE);
        check_equal_lens(&fixture->request);
        write_reply(&fixture->request, &fixture->arena);
    }
    free(body);
}
