/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that decoding allocates, compared with the bound from the scan; and bodies
 * damaged at random. */
#include "wire_fixture.h"

#include "math/plan/parts.h"
#include "safetensors/header.h"
#include "wire/json/object.h"

#include <jansson.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MUTATIONS 100000

static size_t live_bytes, peak_bytes; /* of jansson, with malloc's headers */

static size_t block_bytes(void *memory) {
    return malloc_usable_size(memory) + sizeof(size_t);
}

static void *counting_malloc(size_t size) {
    void *memory = malloc(size);
    if (memory != NULL) {
        live_bytes += block_bytes(memory);
        if (live_bytes > peak_bytes)
            peak_bytes = live_bytes;
    }
    return memory;
}

static void counting_free(void *memory) {
    if (memory != NULL)
        live_bytes -= block_bytes(memory);
    free(memory);
}

/* Replaces the allocator that parse_json_init() has given jansson. */
static int setup(void **state) {
    int failed = fixture_setup(state);
    json_set_alloc_funcs(counting_malloc, counting_free);
    return failed;
}

/* A word is read before anything is reserved: the name of a model. */
#define WORD_BYTES 4096

struct cost {
    size_t bound, measured; /* bytes */
    bool decoded;
};

/* Compares what jansson allocates for a value with its announced cost. Returns the
 * former. */
static size_t compare_value_cost(const struct wire_span *span) {
    size_t size = (size_t)(span->end - span->start), measured;
    if (span->start == NULL)
        return 0;

    size_t bound = wire_json_cost(size);
    peak_bytes = 0;
    json_decref(
        json_loadb(span->start, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL));
    measured = peak_bytes;
    if (measured > bound)
        fail_msg("%zu bytes allocated, but the cost is %zu: %.300s", measured, bound,
                 span->start);
    return measured;
}

/* Scans and decodes a body. Both costs are 0 when the scan refuses it. */
static struct cost measure(struct fixture *fixture, const char *body, size_t size) {
    struct cost cost = {0};

    arena_reset(&fixture->arena);
    peak_bytes = 0;
    assert_int_equal(live_bytes, 0);
    struct wire_source source;
    const struct wire_input input = {
        .body = body, .size = size, .models = (const attn_model *const *)fixture->models};
    if (!wire_native_scan(&input, &source, &fixture->problem))
        return cost;

    peak_bytes = 0;
    cost.decoded = fixture_read(fixture, (const attn_model *const *)fixture->models,
                                NUM_MODELS, &fixture->arena, body, size, &cost.bound);
    cost.measured = peak_bytes + fixture->arena.used;
    compare_value_cost(&source.values[WIRE_FIELD_MODEL].text);
    if (cost.measured > cost.bound + WORD_BYTES)
        fail_msg("%zu bytes allocated, but the bound is %zu: %.300s", cost.measured,
                 cost.bound, body);
    return cost;
}

/* Returns before + count times element + after. */
static char *repeat(const char *before, const char *element, size_t count,
                    const char *after, size_t *ret_size) {
    size_t element_size = strlen(element);
    *ret_size = strlen(before) + count * element_size + strlen(after);
    char *body = malloc(*ret_size + 1), *out = stpcpy(body, before);
    for (size_t i = 0; i < count; i++, out += element_size)
        memcpy(out, element, element_size);
    strcpy(out, after);
    return body;
}

/* An element is repeated between the other two. */
static const struct {
    const char *before, *element, *after;
} hostile[] = {
    {"{\"model\":[", "{},", "0]}"},
    {"{\"model\":[", "[],", "0]}"},
    {"{\"model\":[", "1,", "0]}"},
    {"{\"model\":[", "\"\",", "0]}"},
    {"{\"model\":[", "\"\\n\",", "0]}"},
    {"{\"model\":[", "null,", "0]}"},
    {"{\"model\":[", "[0],", "0]}"},
    {"{\"model\":[", "[[[]]],", "0]}"},
    {"{\"model\":[", "{\"\":0},", "0]}"},
    {"{\"model\":[", "{\"a\":{\"b\":[]}},", "0]}"},
    {"{\"model\":\"d2l\",\"queries\":[", "[1],", "[1]]}"},
    {"{\"model\":\"d2l\",\"queries\":[", "[[1]],", "[[1]]]}"},
    {"{\"model\":\"d2l\",\"queries\":[[[", "1,", "1]]]}"},
    {"{\"model\":\"d2l\",\"queries\":[", "[[1,2,3,4]],", "[[1,2,3,4]]]}"},
    {"{\"model\":\"d2l\",\"queries\":[[0,0,0,0]],\"valid_lens\":[", "0,", "0]}"},
    {"{\"model\":\"d2l\",\"queries\":[[[0,0,0,0]]],\"valid_lens\":[", "[0],", "[0]]}"},
    {"{\"model\":\"d2l\",\"queries\":[[0,0,0,0]],\"head_mask\":[", "0,", "0]}"},
    {"{\"model\":\"d2l\",\"need_weights\":true,\"queries\":[[0,0,0,0]],"
     "\"weights_queries\":[",
     "0,", "0]}"},
    {"{\"model\":\"d2l\",\"need_weights\":true,\"weights_queries\":[0],"
     "\"queries\":[",
     "[0,0,0,0],", "[0,0,0,0]]}"},
    {"{\"model\":\"d2l\",\"need\":[\"spans\"],\"queries\":[[0,0,0,0]],\"spans\":[",
     "[0,1],", "[0,1]]}"},
    {"{\"model\":\"d2l\",\"need\":[\"top\"],\"top_k\":1,\"queries\":[[0,0,0,0]],"
     "\"top_in\":[",
     "[0,1],", "[0,1]]}"},
    {"{\"model\":\"d2l\",\"need\":[\"target\"],\"targets\":[null],\"queries\":[",
     "[[0,0,0,0]],", "[[0,0,0,0]]]}"},
    {"{\"model\":\"d2l\",\"need\":[\"target\"],\"queries\":[[0,0,0,0]],"
     "\"targets\":[",
     "null,", "null]}"},
    {"{\"model\":\"d2l\",\"need\":[\"target\"],\"queries\":[[0,0,0,0]],"
     "\"targets\":[[",
     "[],", "[0]]}"},
    {"{\"model\":\"", "a", "\"}"},
    {"{\"model\":\"", "\\u0041", "\"}"},
    {"{\"model\":{\"", "a", "\":0}}"},
    {"{\"model\":[", "1", "]}"},
    {"{\"model\":[0.", "1", "]}"},
    {"{\"model\":[", "true", "]}"},
    {"{\"model\":", "1 ", "}"},
    {"{\"model\":[", "[1,2,3,4,5,6,7,8,9],",
     "0]}"}, /* one more than the first table has */
    {"{\"model\":[", "1,", "}"},
    {"{\"model\":[[1,2", "]", "]}"},
    {"{\"model\":[", "}{,", "]}"},
    {"{\"", "a", "\":0}"},
    {"", "1 ", ""},
    {"\"", "a", "\""},
};

static void test_bound_holds_for_hostile_bodies(void **state) {
    static const size_t counts[] = {0, 1, 7, 8, 9, 1000, 8193, 100000, 131073};
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            size_t size;
            char *body = repeat(hostile[i].before, hostile[i].element, counts[k],
                                hostile[i].after, &size);
            measure(*state, body, size);
            free(body);
        }
    }
}

static void test_bound_holds_for_an_object_of_many_keys(void **state) {
    for (size_t keys = 1; keys <= 100000; keys = keys * 2 + 1) {
        char *body = malloc(keys * 16 + 32), *out = body;
        out = stpcpy(out, "{\"model\":{");
        for (size_t i = 0; i < keys; i++)
            out += sprintf(out, "%s\"%zu\":%zu", i > 0 ? "," : "", i, i);
        out = stpcpy(out, "}}");
        measure(*state, body, (size_t)(out - body));
        const struct wire_span value = {body + 9, out - 1, 0, 0};
        assert_true(compare_value_cost(&value) > keys * 64); /* parsed to its end */
        free(body);
    }
}

/* Returns the JSON of a header: a shape of so many sizes, or so many tensors. */
static char *make_header_text(bool of_sizes, size_t items, size_t *ret_size) {
    char *text = malloc(items * 16 + 128), *out = text;

    if (of_sizes)
        out = stpcpy(out, "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,0],\"shape\":[");
    else
        *out++ = '{';
    for (size_t i = 0; i < items; i++)
        out += of_sizes ? sprintf(out, "0,") : sprintf(out, "\"%zx\":0,", i);
    out = stpcpy(out - 1, of_sizes ? "]}}" : "}"); /* replaces the last comma */
    *ret_size = (size_t)(out - text);
    return text;
}

static void test_bound_holds_for_headers_of_safetensors(void **state) {
    (void)state;
    for (int of_sizes = 0; of_sizes < 2; of_sizes++) {
        for (size_t items = 1; items <= 131073; items = items * 2 + 1) {
            struct safetensors_header header;
            attn_error error;
            size_t size;
            char *text = make_header_text(of_sizes, items, &size);

            peak_bytes = 0;
            attn_status status = safetensors_header_parse(text, size, 0, &header, &error);
            size_t tables = items * (of_sizes ? sizeof(size_t) : sizeof *header.tensors);
            assert_int_equal(status, of_sizes ? ATTN_OK : ATTN_E_FORMAT);
            assert_true(peak_bytes > size); /* parsed to its end */
            assert_true(peak_bytes + tables <= wire_json_cost(size));
            safetensors_header_deinit(&header);
            free(text);
        }
    }
}

/* A list takes a byte of text where it does not end, and jansson makes it before. */
static void test_bound_holds_for_lists_that_do_not_end(void **state) {
    (void)state;
    for (size_t lists = 1; lists <= 65536; lists = lists * 2 + 1) {
        struct safetensors_header header;
        attn_error error;
        size_t size;
        char *text = repeat("{\"a\":", "[", lists, "", &size);

        peak_bytes = 0;
        assert_int_equal(safetensors_header_parse(text, size, 0, &header, &error),
                         ATTN_E_FORMAT);
        if (peak_bytes > wire_json_cost(size))
            fail_msg("%zu bytes allocated, but the cost of %zu is %zu", peak_bytes, size,
                     wire_json_cost(size));
        safetensors_header_deinit(&header);
        free(text);
    }
}

/* Returns a request to "d2l" with `rows` rows of random numbers of `digits` digits. */
static char *typical_body(size_t rows, int digits, size_t *ret_size) {
    char *body = malloc(64 + rows * (4 * 24 + 3)), *out = body;
    uint64_t random = unit_seed(1);
    out = stpcpy(out, "{\"model\":\"d2l\",\"queries\":[[");
    for (size_t i = 0; i < rows * 4; i++) {
        double number = (double)(int64_t)fixture_random(&random) * 0x1p-63;
        out = stpcpy(out, i % 4 > 0 ? "," : i > 0 ? "],[" : "[");
        out += sprintf(out, "%.*f", digits, number);
    }
    out = stpcpy(out, "]]]}");
    *ret_size = (size_t)(out - body);
    return body;
}

static void test_typical_bodies_need_little_more_than_their_tensors(void **state) {
    static const size_t rows[] = {64, 1024, 32768};
    for (size_t i = 0; i < 3; i++) {
        for (int digits = 1; digits <= 16; digits += 5) {
            size_t size, tensors = rows[i] * 4 * sizeof(float);
            char *body = typical_body(rows[i], digits, &size);
            struct cost cost = measure(*state, body, size);
            assert_true(cost.decoded);
            print_message("%zu rows, %d digits: body %zu, allocated %zu, bound %zu\n",
                          rows[i], digits, size, cost.measured, cost.bound);
            assert_true(cost.bound <= tensors + 4096);
            free(body);
        }
    }
}

/* wire_input.reserve: notes how much is reserved. */
static bool note_bytes(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)ret_problem;
    *(size_t *)context += bytes;
    return true;
}

/* weights_heads is read before need_weights is compared with it, and the marks of its
 * indices have the size of the model. */
static void test_reserved_memory_holds_for_any_number_of_heads(void **state) {
    static const size_t heads[] = {1, 64, 65, 5000};
    static const char *const bodies[] = {
        "{\"queries\":[[1,2,3,4]],\"weights_heads\":[0]}",
        "{\"queries\":[[1,2,3,4]],\"weights_heads\":[0],\"need_weights\":true}"};
    struct fixture *fixture = *state;
    for (size_t i = 0; i < 2 * sizeof heads / sizeof heads[0]; i++) {
        attn_model_info info = fixture_info(MODEL_D2L);
        const char *body = bodies[i % 2];
        attn_model *model;
        size_t reserved = 0;
        info.num_heads = heads[i / 2];
        info.width.head = 1;
        assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
        const struct wire_input input = {.body = body,
                                         .size = strlen(body),
                                         .json_size = WIRE_NO_SIZE,
                                         .models = (const attn_model *const *)&model,
                                         .num_models = 1,
                                         .arena = &fixture->arena,
                                         .reserve = note_bytes,
                                         .context = &reserved};

        arena_reset(&fixture->arena);
        peak_bytes = 0;
        bool read = wire_native_read(&input, &fixture->request, &fixture->problem);
        assert_int_equal(read, i % 2 == 1);
        if (peak_bytes + fixture->arena.used > reserved)
            fail_msg("%zu heads: %zu bytes allocated, but %zu reserved", info.num_heads,
                     peak_bytes + fixture->arena.used, reserved);
        attn_model_destroy(model);
    }
}

static size_t bound_of(struct fixture *fixture, const char *body) {
    size_t reserved;
    assert_false(fixture_read(fixture, (const attn_model *const *)fixture->models, 1,
                              &fixture->arena, body, strlen(body), &reserved));
    assert_int_not_equal(reserved, 0);
    return reserved;
}

static void test_brackets_and_commas_in_strings_do_not_count(void **state) {
    assert_int_equal(
        bound_of(*state,
                 "{\"need\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\",,[[[[[\"}"),
        bound_of(*state,
                 "{\"need\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\\\"aaaaaaa\"}"));
}

static void test_32_levels_are_accepted_and_33_are_not(void **state) {
    struct fixture *fixture = *state;
    struct wire_source source;
    for (int lists = 31; lists <= 32; lists++) {
        char body[100], *out = stpcpy(body, "{\"model\":");
        memset(out, '[', (size_t)lists);
        memset(out + lists, ']', (size_t)lists);
        strcpy(out + 2 * lists, "}");
        const struct wire_input input = {.body = body,
                                         .size = strlen(body),
                                         .models =
                                             (const attn_model *const *)fixture->models};
        bool passed = wire_native_scan(&input, &source, &fixture->problem);
        assert_int_equal(passed, lists == 31);
    }
    assert_string_equal(fixture->problem.title, "Nested too deeply");
    assert_non_null(strstr(fixture->problem.detail, "line 1, column 41:"));
}

/* The scan reads several bytes at a time, so that the offset could matter. */
static void test_commas_and_lists_are_counted_at_every_offset(void **state) {
    struct fixture *fixture = *state;
    for (size_t spaces = 0; spaces < 40; spaces++) {
        for (size_t numbers = 1; numbers < 700; numbers += 23) {
            char body[4096], *out = body;
            out += sprintf(out, "{\"queries\":%*s[", (int)spaces, "");
            for (size_t i = 0; i < numbers; i++)
                out += sprintf(out, i % 5 == 0 ? "[[1,Y_y2],{\",[\":3}]," : "7,");
            out += sprintf(out, "8]}");
            const struct wire_input input = {
                .body = body,
                .size = (size_t)(out - body),
                .models = (const attn_model *const *)fixture->models};
            struct wire_source source;
            if (!wire_native_scan(&input, &source, &fixture->problem))
                fail_msg("%s", fixture->problem.detail);
            const struct wire_span *span = &source.values[WIRE_FIELD_QUERIES].text;
            size_t lists = (numbers + 4) / 5;
            assert_int_equal(span->lists, lists);
            assert_int_equal(span->commas, numbers + 2 * lists);
            assert_ptr_equal(span->start, body + 11 + spaces);
            assert_ptr_equal(span->end, out - 1);
        }
    }
}

static const char *const valid_bodies[] = {
    "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4],[5,6,7,8]],[[9,1e1,-0.5,12]]],"
    "\"valid_lens\":[[1,2],[0]],\"need_weights\":true,\"head_mask\":[1,0],"
    "\"weights_heads\":[1],\"weights_queries\":[0]}",
    "{\"model\":\"d2l\",\"queries\":[[0.1,2,3,4]],\"keys\":[[1,2,3,4],[5,6,7,8]],"
    "\"values\":[[1,2,3,4],[5,6,7,8]],\"valid_lens\":2,\"need_weights\":\"mean\"}",
    "{\"model\":\"narrow\",\"queries\":[[1,2,3]],\"keys\":[[1,2],[3,4]],\"values\":null,"
    "\"causal\":false,\"valid_lens\":[1]}",
    "{\"model\":\"narrow\",\"queries\":[[[1,2,3]],[[4,5,6]]],\"keys\":[[[1,2]],[[3,4]]],"
    "\"valid_lens\":[0,1],\"causal\":true,\"head_mask\":[0.5]}",
    "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4],[5,6,7,8]],[[9,1e1,-0.5,12],[1,2,3,4]]],"
    "\"positions\":[7,3],\"window\":2,\"need\":[\"lse\",\"weights\"]}",
    "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4]],[[9,1e1,-0.5,12],[1,2,3,4]]],"
    "\"positions\":[[4],[7,3]],\"key_positions\":[[0],[1,1]],\"need\":[\"heads\"]}",
    "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4],[5,6,7,8]],[[9,1e1,-0.5,12],[1,2,3,4]]],"
    "\"need\":[\"target\",\"top\"],\"targets\":[null,[1,2]],\"top_k\":1,"
    "\"top_in\":[0,1],\"weights_queries\":[-1]}",
    "{\"model\":\"d2l\",\"queries\":[[[1,2,3,4],[5,6,7,8]],[[9,1e1,-0.5,12]]],"
    "\"need\":[\"target\",\"spans\",\"blocks\"],\"targets\":[[null,[1,2]],[[0,0]]],"
    "\"spans\":[[[0,2],[1,2]],[[0,1],[0,1]]],\"block\":2}",
};

#define NUM_VALID (sizeof valid_bodies / sizeof valid_bodies[0])

/* Damages `body`, which has room for 1024 bytes. Returns its new size. */
static size_t mutate(char *body, size_t size, uint64_t *random) {
    for (uint64_t times = 1 + fixture_random(random) % 4; times > 0 && size > 0;
         times--) {
        size_t at = fixture_random(random) % size;
        const char *other = valid_bodies[fixture_random(random) % NUM_VALID];
        size_t from = fixture_random(random) % strlen(other);
        size_t length = fixture_random(random) % 24;
        if (length > strlen(other) - from)
            length = strlen(other) - from;
        switch (fixture_random(random) % 8) {
        case 0:
            body[at] = (char)(body[at] ^ (1 << fixture_random(random) % 8));
            break;
        case 1:
            size = at;
            break;
        case 2: /* overwrites with bytes of another body */
            if (at + length <= size)
                memcpy(body + at, other + from, length);
            break;
        case 3: /* inserts bytes of another body */
            if (size + length <= 1024) {
                memmove(body + at + length, body + at, size - at);
                memcpy(body + at, other + from, length);
                size += length;
            }
            break;
        case 4: /* removes bytes */
            if (at + length <= size) {
                memmove(body + at, body + at + length, size - at - length);
                size -= length;
            }
            break;
        default: /* keeps it close to JSON, in most cases */
            body[at] = "0123456789-.eE,:[]{}\"\\ n"[fixture_random(random) % 24];
            break;
        }
    }
    return size;
}

static void test_damaged_bodies_are_decoded_or_refused_within_the_bound(void **state) {
    struct fixture *fixture = *state;
    uint64_t random = unit_seed(4711);
    size_t decoded = 0, refused = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        char body[1024];
        const char *valid = valid_bodies[(size_t)i % NUM_VALID];
        memcpy(body, valid, strlen(valid));
        size_t size = mutate(body, strlen(valid), &random);
        char *exact =
            malloc(size > 0 ? size : 1); /* so that a read past its end is found */
        memcpy(exact, body, size);
        memset(&fixture->problem, 0, sizeof fixture->problem);
        struct cost cost = measure(fixture, exact, size);
        free(exact);

        if (cost.decoded) {
            assert_int_equal(plan_check_reductions(&fixture->request.batch, NULL),
                             ATTN_OK);
            decoded++;
        } else {
            refused++;
            assert_true(fixture->problem.status == 400 || fixture->problem.status == 404);
            assert_true(fixture->problem.detail[0] != '\0');
        }
    }
    print_message("%zu decoded, %zu refused\n", decoded, refused);
    assert_true(decoded > MUTATIONS / 100); /* else the damage is too heavy for a test */
    assert_true(refused > MUTATIONS / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound_holds_for_hostile_bodies),
        cmocka_unit_test(test_bound_holds_for_an_object_of_many_keys),
        cmocka_unit_test(test_bound_holds_for_headers_of_safetensors),
        cmocka_unit_test(test_bound_holds_for_lists_that_do_not_end),
        cmocka_unit_test(test_typical_bodies_need_little_more_than_their_tensors),
        cmocka_unit_test(test_reserved_memory_holds_for_any_number_of_heads),
        cmocka_unit_test(test_brackets_and_commas_in_strings_do_not_count),
        cmocka_unit_test(test_32_levels_are_accepted_and_33_are_not),
        cmocka_unit_test(test_commas_and_lists_are_counted_at_every_offset),
        cmocka_unit_test(test_damaged_bodies_are_decoded_or_refused_within_the_bound),
    };
    return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
