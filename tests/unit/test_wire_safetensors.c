/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_safetensors.c: what cannot be tested over HTTP of requests and replies in
 * safetensors: alignment, memory, pieces, and what Accept chooses. The rest is in
 * tests/http/test_safetensors_body.py. */
#include "fail_alloc.h"
#include "weights_file.h"
#include "wire/media.h"
#include "wire/safetensors/safetensors.h"
#include "wire_fixture.h"

/* wire_input.reserve: adds up what is asked for. */
static bool add_bytes(void *context, size_t bytes, struct wire_problem *ret_problem) {
    size_t *reserved = context;
    (void)ret_problem;
    *reserved += bytes;
    return true;
}

static bool read_bytes(struct fixture *fixture, const unsigned char *bytes, size_t size,
                       struct arena *arena) {
    size_t reserved = 0, used = arena->used;
    const struct wire_input input = {.body = (const char *)bytes,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .models = (const attn_model *const *)fixture->models,
                                     .num_models = NUM_MODELS,
                                     .arena = arena,
                                     .reserve = add_bytes,
                                     .context = &reserved};
    bool read = wire_safetensors_read(&input, &fixture->request, &fixture->problem);
    assert_true(arena->used - used <= reserved);
    return read;
}

/* Makes a request of two sequences that has every tensor. Its data begins at a multiple
 * of 8 bytes, and `pad` more. The caller frees it. */
static unsigned char *make_request(size_t *ret_size, size_t pad) {
    static const int64_t lens[] = {1, 2}, valid[] = {1, 0}, heads[] = {1, 0}, first = 0;
    static const int64_t positions[] = {5, 0, 9};
    static const float mask[] = {1, 0.5F};
    struct weights_file made = {0};

    file_add_text(&made, "\"__metadata__\":{\"model\":\"d2l\",\"need_weights\":\"true\","
                         "\"timeout_ms\":\"2.5\",\"priority\":\"3\"}");
    file_add(&made, "query_lens", "I64", "[2]", lens, sizeof lens);
    file_add(&made, "key_lens", "I64", "[2]", lens, sizeof lens);
    file_add(&made, "valid_lens", "I64", "[2]", valid, sizeof valid);
    file_add(&made, "positions", "I64", "[3]", positions, sizeof positions);
    file_add(&made, "key_positions", "I64", "[3]", positions, sizeof positions);
    file_add(&made, "weights_heads", "I64", "[2]", heads, sizeof heads);
    file_add(&made, "weights_queries", "I64", "[1]", &first, sizeof first);
    file_add(&made, "head_mask", "F32", "[2]", mask, sizeof mask);
    file_add_f32(&made, "queries", 3, 4, 1);
    file_add_f32(&made, "keys", 3, 4, 2);
    file_add_f32(&made, "values", 3, 4, 3);

    char header[sizeof made.header + 32];
    int size = snprintf(header, sizeof header, "{%s}", made.header);
    while ((8 + size) % 8 != (int)pad)
        header[size++] = ' ';
    return file_make_raw(header, (size_t)size, made.data, made.data_size, ret_size);
}

static void test_aligned_floats_stay_in_the_body(void **state) {
    struct fixture *fixture = *state;
    for (size_t pad = 0; pad < 8; pad++) {
        size_t size;
        unsigned char *bytes = make_request(&size, pad);
        arena_reset(&fixture->arena);
        assert_true(read_bytes(fixture, bytes, size, &fixture->arena));

        const attn_request *batch = &fixture->request.batch;
        const unsigned char *queries = (const unsigned char *)batch->queries;
        assert_int_equal(fixture->request.in_body, pad % 4 == 0);
        assert_int_equal(queries >= bytes && queries < bytes + size, pad % 4 == 0);
        assert_true(batch->queries[0] == 1 && batch->keys[0] == 2 &&
                    batch->values[11] == 3 + 11 / 8.0F && batch->head_mask[1] == 0.5F);
        assert_int_equal(fixture->request.timeout_ns, 2500000);
        assert_int_equal(fixture->request.priority, 3);
        assert_true(fixture->request.lens_sent && batch->num_sequences == 2 &&
                    batch->query_lens[1] == 2 && batch->valid_lens[1] == 0 &&
                    batch->positions[2] == 9 && batch->key_positions[0] == 5);
        free(bytes);
    }
}

static void test_every_failed_allocation_is_reported(void **state) {
    struct fixture *fixture = *state;
    size_t size, failures = 0;
    unsigned char *bytes = make_request(&size, 1); /* everything is copied */
    for (size_t room = 0; room < 20; room++) {
        for (size_t nth = 1;; nth++) {
            struct arena arena;
            fixture_fill_arena(&arena, room);
            fail_alloc_at(nth);
            bool read = read_bytes(fixture, bytes, size, &arena);
            bool failed = fail_alloc_stop();
            arena_deinit(&arena);

            if (!failed) {
                assert_true(read);
                break;
            }
            assert_false(read);
            assert_string_equal(fixture->problem.title, "Out of memory");
            failures++;
        }
    }
    assert_true(failures > 20 * 20);
    free(bytes);
}

/* The reply is also as long as it announced. */
static void test_pieces_of_any_size_make_the_same_reply(void **state) {
    struct fixture *fixture = *state;
    size_t size;
    unsigned char *bytes = make_request(&size, 0);
    float outputs[12], weights[2 * (1 + 2)];
    for (size_t i = 0; i < 12; i++)
        outputs[i] = (float)i;
    for (size_t i = 0; i < 6; i++)
        weights[i] = (float)i / 8;

    arena_reset(&fixture->arena);
    assert_true(read_bytes(fixture, bytes, size, &fixture->arena));
    const attn_result result = {.outputs = outputs, .weights = weights};
    char whole[4096];
    size_t bound = wire_safetensors_writer.bound(&fixture->request);

    for (size_t piece_size = 1; piece_size <= 1024; piece_size += 77) {
        struct wire_reply_head head;
        char text[4096], piece[1024];
        size_t used = 0, written;
        void *encoder = wire_safetensors_writer.begin(&fixture->arena, &fixture->request,
                                                      &result, &head, &fixture->problem);
        assert_non_null(encoder);
        while ((written = wire_safetensors_writer.fill(encoder, piece, piece_size)) > 0) {
            memcpy(text + used, piece, written);
            used += written;
        }

        assert_int_equal(used, head.size);
        assert_int_equal(used, bound);
        if (piece_size == 1)
            memcpy(whole, text, used);
        assert_memory_equal(text, whole, used);
        assert_memory_equal(text + used - sizeof weights, weights, sizeof weights);
        assert_memory_equal(text + used - sizeof weights - sizeof outputs, outputs,
                            sizeof outputs);
    }
    free(bytes);
}

static void test_accept_weighs_the_media_types(void **state) {
    (void)state;
    static const struct {
        const char *lines[2];
        enum wire_media request, reply;
    } cases[] = {
        {{NULL}, WIRE_MEDIA_JSON, WIRE_MEDIA_JSON},
        {{NULL}, WIRE_MEDIA_OCTETS, WIRE_MEDIA_SAFETENSORS},
        {{""}, WIRE_MEDIA_JSON, WIRE_MEDIA_JSON},
        {{"*/*"}, WIRE_MEDIA_SAFETENSORS, WIRE_MEDIA_SAFETENSORS},
        {{"text/html", "application/json"}, WIRE_MEDIA_OCTETS, WIRE_MEDIA_JSON},
        {{"application/json;q=0.001"}, WIRE_MEDIA_SAFETENSORS, WIRE_MEDIA_JSON},
        {{"application/json; charset=x; Q=0"}, WIRE_MEDIA_JSON, WIRE_NUM_MEDIA},
        {{"application/*;q=0, */*"}, WIRE_MEDIA_JSON, WIRE_NUM_MEDIA},
        {{"*/*;q=1.0", "application/json;q=0.9"},
         WIRE_MEDIA_JSON,
         WIRE_MEDIA_SAFETENSORS},
        {{"application/json;q=2"}, WIRE_MEDIA_JSON, WIRE_NUM_MEDIA},
        {{"application/json;q=", ",,;;q=1"}, WIRE_MEDIA_JSON, WIRE_NUM_MEDIA},
        {{"application/jsonx"}, WIRE_MEDIA_JSON, WIRE_NUM_MEDIA},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_accept accept = {0};
        for (size_t line = 0; line < 2 && cases[i].lines[line] != NULL; line++)
            wire_accept_add(&accept, cases[i].lines[line]);
        if (wire_accept_choose(&accept, cases[i].request) != cases[i].reply)
            fail_msg("case %zu", i);
    }
    assert_int_equal(wire_media_find(NULL), WIRE_NUM_MEDIA);
    assert_int_equal(wire_media_find("Application/Vnd.Safetensors ; x"),
                     WIRE_MEDIA_SAFETENSORS);
    assert_int_equal(wire_media_find("application/jsonp"), WIRE_NUM_MEDIA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aligned_floats_stay_in_the_body),
        cmocka_unit_test(test_every_failed_allocation_is_reported),
        cmocka_unit_test(test_pieces_of_any_size_make_the_same_reply),
        cmocka_unit_test(test_accept_weighs_the_media_types),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
