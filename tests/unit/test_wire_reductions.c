/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_reductions.c: spans, top_k, top_in, targets, block and row_weights, decoded
 * from JSON and safetensors. tests/http/test_reductions.py has the errors and the
 * replies. */
#include "fail_alloc.h"
#include "math/plan/parts.h"
#include "weights_file.h"
#include "wire/safetensors/safetensors.h"
#include "wire_fixture.h"

#define ROW    "[1,2,3,4]"
#define RAGGED "\"queries\":[[" ROW "," ROW "],[" ROW "]],"
#define PADDED "\"queries\":[[" ROW "," ROW "],[" ROW "," ROW "]],"
#define EVERY                                                                            \
    "\"need\":[\"spans\",\"top\",\"target\",\"received\",\"entropy\",\"blocks\"],"
#define OPTIONS "\"spans\":[[0,1],[0,1]],\"top_k\":1,\"top_in\":[[0,1]],\"block\":3,"

/* wire_input.reserve: adds up what is asked for. */
static bool add_bytes(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)ret_problem;
    *(size_t *)context += bytes;
    return true;
}

/* Reads a body in no more memory than is reserved. What is read passes the checks of the
 * plan. */
static bool read_body(struct fixture *fixture, wire_read *read, const void *body,
                      size_t size) {
    size_t reserved = 0, used = fixture->arena.used;
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .models = (const attn_model *const *)fixture->models,
                                     .num_models = 1,
                                     .arena = &fixture->arena,
                                     .reserve = add_bytes,
                                     .context = &reserved};
    bool done = read(&input, &fixture->request, &fixture->problem);
    assert_true(fixture->arena.used - used <= reserved);
    if (done)
        assert_int_equal(plan_check_reductions(&fixture->request.batch, NULL), ATTN_OK);
    return done;
}

static const attn_request *read_native(struct fixture *fixture, const char *body) {
    arena_reset(&fixture->arena);
    if (!read_body(fixture, wire_native_read, body, strlen(body)))
        fail_msg("%s: %s", body, fixture->problem.detail);
    return &fixture->request.batch;
}

static void assert_list(const size_t *list, size_t count, const size_t *expected) {
    assert_non_null(list);
    assert_memory_equal(list, expected, count * sizeof *list);
}

static void test_every_word_has_its_option(void **state) {
    const attn_request *batch = read_native(
        *state, "{" RAGGED EVERY OPTIONS "\"targets\":[[null,[1,2]],[[0,0]]]}");
    const attn_reductions *reduce = &batch->reduce;
    assert_true(batch->omit_outputs && batch->need_weights == ATTN_WEIGHTS_NONE);
    assert_true(reduce->received && reduce->entropy && !reduce->spans_per_sequence);
    assert_int_equal(reduce->num_spans, 2);
    assert_list(reduce->spans, 4, (size_t[]){0, 1, 0, 1});
    assert_int_equal(reduce->top_k, 1);
    assert_int_equal(reduce->num_top_in, 1);
    assert_list(reduce->top_in, 2, (size_t[]){0, 1});
    assert_list(reduce->targets, 6, (size_t[]){0, 0, 1, 2, 0, 0});
    assert_int_equal(reduce->block, 3);

    batch = read_native(*state, "{" RAGGED "\"need\":[\"lse\"],\"top_k\":null}");
    reduce = &batch->reduce;
    assert_true(reduce->spans == NULL && reduce->top_in == NULL &&
                reduce->targets == NULL && reduce->top_k == 0 && reduce->block == 0 &&
                !reduce->received && !reduce->entropy);
}

static void test_lists_of_spans_and_targets_are_of_one_or_all_sequences(void **state) {
    const attn_request *batch = read_native(
        *state, "{" RAGGED "\"need\":[\"spans\",\"top\"],\"spans\":[[[1,2]],[[0,1]]],"
                "\"top_k\":1,\"top_in\":[0,1]}");
    assert_true(batch->reduce.spans_per_sequence);
    assert_int_equal(batch->reduce.num_spans, 1);
    assert_list(batch->reduce.spans, 4, (size_t[]){1, 2, 0, 1});
    assert_int_equal(batch->reduce.num_top_in, 1);

    const size_t twice[] = {0, 0, 1, 2, 0, 0, 1, 2};
    batch = read_native(*state,
                        "{" PADDED "\"need\":[\"target\"],\"targets\":[ null , [1,2] ]}");
    assert_list(batch->reduce.targets, 8, twice);
    batch = read_native(*state, "{" PADDED "\"need\":[\"target\"],"
                                "\"targets\":[[null,[1,2]],[[0,0],[1, 2]]]}");
    assert_list(batch->reduce.targets, 8, twice);
}

static void test_row_weights_are_of_all_heads_or_of_each(void **state) {
    const float one[] = {-1, 0.5F}, two[] = {1, 2, -3, 4};
    const attn_request *batch = read_native(
        *state, "{" PADDED "\"need\":[\"received\"],\"row_weights\":[-1,5e-1]}");
    assert_false(batch->reduce.row_weights_per_head);
    assert_memory_equal(batch->reduce.row_weights, one, sizeof one);

    batch =
        read_native(*state, "{" PADDED "\"need\":[\"received\"],\"weights_heads\":[1],"
                            "\"row_weights\":[[1,2],[-3, 4]]}");
    assert_true(batch->reduce.row_weights_per_head);
    assert_memory_equal(batch->reduce.row_weights, two, sizeof two);
    batch = read_native(*state, "{" RAGGED "\"need\":[\"lse\"],\"row_weights\":null}");
    assert_null(batch->reduce.row_weights);
}

static void test_rows_may_be_selected_from_the_end(void **state) {
    const attn_request *batch =
        read_native(*state, "{" PADDED "\"need\":[\"entropy\"],\"weights_heads\":[1],"
                            "\"weights_queries\":[-1, -2e0]}");
    assert_int_equal(batch->num_weights_queries, 2);
    assert_true(batch->weights_queries[0] == -1 && batch->weights_queries[1] == -2);
    assert_int_equal(batch->num_weights_heads, 1);
    batch = read_native(*state, "{" RAGGED "\"need\":[\"received\"],"
                                "\"weights_queries\":[-0]}");
    assert_true(batch->weights_queries[0] == 0);
}

/* Makes a body of two sequences, packed or padded. The caller frees it. */
static unsigned char *make_body(bool packed, size_t *ret_size) {
    static const int64_t lens[] = {2, 2}, ranges[] = {0, 1, 1, 2, 0, 0, 1, 2}, last = -1;
    static const uint16_t factors[] = {0, 0x3f80, 0, 0xbf80}; /* 1 and -1, or 0 1 0 -1 */
    struct weights_file made = {0};
    file_add_text(&made, "\"__metadata__\":{\"model\":\"d2l\",\"top_k\":\"1\","
                         "\"block\":\"3\",\"need\":\"spans,top, target,received,"
                         "entropy,blocks\"}");
    if (packed)
        file_add(&made, "query_lens", "I64", "[2]", lens, sizeof lens);
    file_add(&made, "spans", "I64", packed ? "[2,2]" : "[2,1,2]", ranges, 32);
    file_add(&made, "top_in", "I64", packed ? "[2]" : "[2,2]", ranges, packed ? 16 : 32);
    file_add(&made, "targets", "I64", packed ? "[4,2]" : "[2,2]",
             packed ? ranges : ranges + 4, packed ? 64 : 32);
    file_add(&made, "weights_queries", "I64", "[1]", &last, sizeof last);
    file_add(&made, "row_weights", packed ? "F32" : "BF16", packed ? "[2]" : "[2,2]",
             factors, 8);
    if (packed) {
        file_add_f32(&made, "queries", 4, 4, 1);
    } else {
        static const float numbers[16];
        file_add(&made, "queries", "F32", "[2,2,4]", numbers, sizeof numbers);
    }

    char header[sizeof made.header + 32];
    int size = snprintf(header, sizeof header, "{%s}", made.header);
    return file_make_raw(header, (size_t)size, made.data, made.data_size, ret_size);
}

static void test_tensors_are_read_as_lists_are(void **state) {
    static const float ones[] = {1, -1}, zeros[] = {0, 1, 0, -1};
    struct fixture *fixture = *state;
    for (int packed = 0; packed < 2; packed++) {
        const attn_reductions *reduce = &fixture->request.batch.reduce;
        size_t size;
        unsigned char *body = make_body(packed != 0, &size);
        arena_reset(&fixture->arena);
        if (!read_body(fixture, wire_safetensors_read, body, size))
            fail_msg("%s", fixture->problem.detail);

        assert_list(reduce->spans, 4, (size_t[]){0, 1, 1, 2});
        assert_int_equal(reduce->spans_per_sequence, !packed);
        assert_int_equal(reduce->num_spans, packed ? 2 : 1);
        assert_int_equal(reduce->num_top_in, packed ? 1 : 2);
        assert_list(reduce->top_in, packed ? 2 : 4, (size_t[]){0, 1, 1, 2});
        assert_list(reduce->targets, 8,
                    packed ? (size_t[]){0, 1, 1, 2, 0, 0, 1, 2}
                           : (size_t[]){0, 0, 1, 2, 0, 0, 1, 2});
        assert_true(reduce->top_k == 1 && reduce->block == 3 && reduce->received &&
                    reduce->entropy);
        assert_true(fixture->request.batch.weights_queries[0] == -1);
        assert_int_equal(reduce->row_weights_per_head, !packed);
        for (size_t k = 0; k < (packed ? 2 : 4); k++)
            assert_true(reduce->row_weights[k] == (packed ? ones : zeros)[k]);
        free(body);
    }
}

/* Reads a body in arenas with less and less room, whose next chunk cannot be had. */
static void fail_allocations(const struct fixture *fixture, wire_read *read,
                             const void *body, size_t size) {
    size_t failures = 0;
    for (size_t room = 0; room < 40; room++) {
        for (size_t nth = 1;; nth++) {
            struct fixture small = *fixture;
            fixture_fill_arena(&small.arena, room);
            fail_alloc_at(nth);
            bool done = read_body(&small, read, body, size);
            bool failed = fail_alloc_stop();
            arena_deinit(&small.arena);
            assert_int_equal(done, !failed);
            if (!failed)
                break;
            assert_string_equal(small.problem.title, "Out of memory");
            failures++;
        }
    }
    assert_true(failures >= 8);
}

static void test_every_failed_allocation_is_reported(void **state) {
    static const char *const texts[] = {
        "{" PADDED EVERY OPTIONS "\"targets\":[null,[1,2]],\"weights_queries\":[-1],"
        "\"row_weights\":[1,2]}",
        "{" PADDED EVERY OPTIONS "\"targets\":[null,[1,2]],\"weights_queries\":[-1],"
        "\"row_weights\":[[1,2],[3,4]]}"};
    size_t size;
    unsigned char *body = make_body(false, &size);
    for (size_t i = 0; i < 2; i++)
        fail_allocations(*state, wire_native_read, texts[i], strlen(texts[i]));
    fail_allocations(*state, wire_safetensors_read, body, size);
    free(body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_word_has_its_option),
        cmocka_unit_test(test_lists_of_spans_and_targets_are_of_one_or_all_sequences),
        cmocka_unit_test(test_row_weights_are_of_all_heads_or_of_each),
        cmocka_unit_test(test_rows_may_be_selected_from_the_end),
        cmocka_unit_test(test_tensors_are_read_as_lists_are),
        cmocka_unit_test(test_every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
