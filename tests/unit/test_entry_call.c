/* SPDX-License-Identifier: Apache-2.0 */
/* test_entry_call.c: calls of a program in its process: arrays of all types and strides
 * against the same numbers as JSON, threads, stops, errors and lack of memory. */
#include "base/dtype.h"
#include "fail_alloc.h"
#include "random_model.h"
#include "sample.h"
#include "seed.h"

#include <attnd/program.h>
#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#define AXES      4
#define NUMBERS   4096
#define BODY_SIZE ((size_t)512 * 1024)

static attn_pool *pool;

static int make_pool(void **state) {
    (void)state;
    return attn_pool_create(3, &pool, NULL);
}

static int drop_pool(void **state) {
    (void)state;
    attn_pool_destroy(pool);
    return 0;
}

static attn_reply *call(const char *options, const attn_array *arrays, size_t count) {
    attn_reply *reply = NULL;
    attn_error error = {.text = ""};
    attn_status status =
        attn_call(pool, NULL, options, arrays, count, NULL, &reply, &error);
    if (status != ATTN_OK)
        fail_msg("%s", error.text);
    return reply;
}

static size_t count_of(const attn_array *array) {
    size_t count = 1;
    for (size_t axis = 0; axis < array->rank; axis++)
        count *= array->shape[axis];
    return count;
}

/* Also drops the second one. */
static void assert_same_reply(const attn_reply *a, attn_reply *b) {
    const attn_array *one, *other;
    for (size_t i = 0; (one = attn_reply_array(a, i)) != NULL; i++) {
        other = attn_reply_array(b, i);
        assert_non_null(other);
        assert_string_equal(one->name, other->name);
        assert_string_equal(one->type, other->type);
        assert_int_equal(one->rank, other->rank);
        assert_memory_equal(one->shape, other->shape, one->rank * sizeof *one->shape);
        size_t bytes = dtype_find(one->type)->bits / 8;
        assert_memory_equal(one->data, other->data, count_of(one) * bytes);
    }
    assert_string_equal(attn_reply_text(a), attn_reply_text(b));
    attn_reply_destroy(b);
}

/* --- random arrays, and the same as JSON --- */

/* An array whose axes lie in any order and direction, with gaps. */
struct laid_out {
    attn_array array;
    size_t shape[AXES];
    ptrdiff_t strides[AXES];
    unsigned char bytes[NUMBERS * 16];
};

/* Small numbers that every float type has. */
static double random_number(uint64_t *seed) {
    return (double)random_between(seed, 0, 64) / 16 - 2;
}

static void store_number(const char *type, double number, unsigned char *to) {
    float narrow = (float)number;
    uint32_t bits;
    uint16_t half;
    int64_t integer = (int64_t)number;

    memcpy(&bits, &narrow, sizeof bits);
    if (strcmp(type, "F64") == 0) {
        memcpy(to, &number, sizeof number);
    } else if (strcmp(type, "F32") == 0) {
        memcpy(to, &narrow, sizeof narrow);
    } else if (strcmp(type, "BF16") == 0) {
        memcpy(to, (unsigned char *)&bits + 2, 2);
    } else if (strcmp(type, "F16") == 0) {
        half = number == 0 ? 0
                           : (uint16_t)((bits >> 16 & 0x8000) |
                                        (((bits >> 23 & 0xff) - 112) << 10) |
                                        (bits >> 13 & 0x3ff));
        memcpy(to, &half, sizeof half);
    } else {
        memcpy(to, &integer, sizeof integer);
    }
}

/* Lays out an array of random numbers, and writes them as nested lists of JSON. */
static char *lay_out(uint64_t *seed, const char *name, const char *type, size_t rank,
                     const size_t *shape, struct laid_out *to, char *json) {
    size_t order[AXES], bytes = dtype_find(type)->bits / 8;
    size_t step = bytes, start = random_between(seed, 0, 3), count = 1;

    for (size_t axis = 0; axis < rank; axis++) {
        to->shape[axis] = shape[axis];
        order[axis] = rank - 1 - axis;
        count *= shape[axis];
    }
    for (size_t i = rank; i > 1 && random_between(seed, 0, 1) == 1; i--) {
        size_t other = random_between(seed, 0, i - 1), swapped = order[i - 1];
        order[i - 1] = order[other];
        order[other] = swapped;
    }
    for (size_t i = 0; i < rank; i++) {
        size_t axis = order[i];
        bool turned = random_between(seed, 0, 5) == 0;
        to->strides[axis] = turned ? -(ptrdiff_t)step : (ptrdiff_t)step;
        start += turned ? step * (shape[axis] - 1) : 0;
        step *= shape[axis];
        if (random_between(seed, 0, 4) == 0 && step < sizeof to->bytes / 4 / bytes)
            step += bytes;
    }
    assert_true(step + 8 < sizeof to->bytes);
    to->array = (attn_array){name, type, rank, to->shape, to->strides, to->bytes + start};

    json += sprintf(json, ",\"%s\":", name);
    for (size_t i = 0; i < count; i++) {
        unsigned char *at = to->bytes + start;
        size_t rest = i, opened = 0, closed = 0, unit = 1;
        for (size_t axis = rank; axis-- > 0; rest /= shape[axis])
            at += (ptrdiff_t)(rest % shape[axis]) * to->strides[axis];
        for (size_t axis = rank; axis-- > 0;) {
            unit *= shape[axis];
            opened += i % unit == 0;
            closed += (i + 1) % unit == 0;
        }
        double number = random_number(seed);
        store_number(type, number, at);
        json += sprintf(json, "%s%.*s%.10g%.*s", i > 0 ? "," : "", (int)opened, "[[[[",
                        number, (int)closed, "]]]]");
    }
    return json;
}

static void test_arrays_are_the_same_as_json(void **state) {
    static const char *const types[] = {"F32", "F32", "F16", "BF16", "F64"};
    static const char *const options[] = {
        "{\"need\":[\"heads\",\"weights\",\"lse\"]",
        "{\"need\":[\"received\",\"entropy\"],\"scale\":0.5",
        "{\"softcap\":2.5,\"window\":3",
        "{\"need\":[\"top\",\"heads\"],\"top_k\":1,\"weights_heads\":[0]",
    };
    struct laid_out *arrays = calloc(3, sizeof *arrays);
    char *body = malloc(BODY_SIZE);
    uint64_t seed = unit_seed(20261128);

    (void)state;
    for (unsigned i = 0; i < sample_cases(300); i++) {
        size_t kv = random_between(&seed, 1, 2), size = random_between(&seed, 1, 9);
        size_t batched = random_between(&seed, 0, 1);
        size_t b = random_between(&seed, 1, 3), tk = random_between(&seed, 1, 7);
        const size_t q[] = {b, random_between(&seed, 1, 7), kv * 2, size};
        const size_t k[] = {b, tk, kv, size}, v[] = {b, tk, kv, size + 1};
        const char *words = options[random_between(&seed, 0, 3)];
        char *end = stpcpy(body, words);
        const char *type = types[random_between(&seed, 0, 4)];

        end = lay_out(&seed, "queries", type, 3 + batched, q + 1 - batched, &arrays[0],
                      end);
        type = types[random_between(&seed, 0, 4)];
        end = lay_out(&seed, "keys", type, 3 + batched, k + 1 - batched, &arrays[1], end);
        type = types[random_between(&seed, 0, 4)];
        end =
            lay_out(&seed, "values", type, 3 + batched, v + 1 - batched, &arrays[2], end);
        strcpy(end, "}");

        const attn_array sent[] = {arrays[2].array, arrays[0].array, arrays[1].array};
        char option_text[128];
        sprintf(option_text, "%s}", words);
        attn_reply *by_json = call(body, NULL, 0);
        assert_same_reply(by_json, call(option_text, sent, 3));
        attn_reply_destroy(by_json);
    }
    free(body);
    free(arrays);
}

/* --- a small request --- */

static const size_t small_shape[] = {1, 3, 1, 2};
static const float small_numbers[] = {1, 0, 0, 1, 1, 1};
static const attn_array small_arrays[] = {
    {"queries", "F32", 4, small_shape, NULL, small_numbers},
    {"keys", "F32", 4, small_shape, NULL, small_numbers},
    {"values", "F32", 4, small_shape, NULL, small_numbers},
};

static void test_integers_and_booleans(void **state) {
    static const size_t one[] = {1}, three[] = {3}, pairs[] = {3, 2};
    static const ptrdiff_t backwards[] = {-8}, same_row[] = {0, 4};
    static const int64_t lens[] = {2}, positions[] = {9, 5, 0};
    static const int32_t spans[] = {0, 2};
    static const unsigned char mask[] = {1, 0, 2};
    attn_array arrays[5];

    (void)state;
    memcpy(arrays, small_arrays, sizeof small_arrays);
    arrays[3] = (attn_array){"valid_lens", "I64", 1, one, NULL, lens};
    arrays[4] = (attn_array){"positions", "I64", 1, three, backwards, positions + 2};
    attn_reply *expected = call("{\"valid_lens\":[2],\"positions\":[0,5,9]}", arrays, 3);
    assert_same_reply(expected, call(NULL, arrays, 5));
    attn_reply_destroy(expected);

    arrays[3] = (attn_array){"attn_mask", "BOOL", 1, three, NULL, mask};
    arrays[4] = (attn_array){"targets", "I32", 2, pairs, same_row, spans};
    expected = call("{\"need\":[\"target\"],\"targets\":[[0,2],[0,2],[0,2]],"
                    "\"attn_mask\":[true,false,true]}",
                    arrays, 3);
    assert_same_reply(expected, call("{\"need\":[\"target\"]}", arrays, 5));
    attn_reply_destroy(expected);
}

static void test_lengths_of_sequences(void **state) {
    static const size_t shape[] = {3, 1, 2}, two[] = {2};
    static const int64_t lens[] = {1, 2};
    const attn_array arrays[] = {
        {"queries", "F32", 3, shape, NULL, small_numbers},
        {"keys", "F32", 3, shape, NULL, small_numbers},
        {"query_lens", "I64", 1, two, NULL, lens},
    };

    (void)state;
    attn_reply *reply = call("{\"need\":[\"lse\",\"weights\"]}", arrays, 3);
    assert_string_equal(attn_reply_array(reply, 0)->name, "query_lens");
    assert_string_equal(attn_reply_array(reply, 1)->name, "key_lens");
    assert_string_equal(attn_reply_array(reply, 2)->name, "attention_weights");
    assert_int_equal(attn_reply_array(reply, 2)->shape[0], 1 + 4);
    assert_null(attn_reply_array(reply, 4));
    assert_string_equal(attn_reply_text(reply), "{\"model\":\"dot-product\"}");
    attn_reply_destroy(reply);
}

/* --- errors --- */

static void refuse(attn_status expected, const char *text, const char *options,
                   const attn_array *arrays, size_t count) {
    attn_reply *reply = NULL;
    attn_error error = {.text = ""};
    attn_status status =
        attn_call(pool, NULL, options, arrays, count, NULL, &reply, &error);
    if (strstr(error.text, text) == NULL)
        fail_msg("'%s' does not have '%s'", error.text, text);
    assert_int_equal(status, expected);
    assert_null(reply);
}

static void refuse_array(attn_status expected, const char *text, attn_array array) {
    attn_array arrays[] = {small_arrays[0], small_arrays[1], array};
    refuse(expected, text, NULL, arrays, 3);
}

static void test_errors_are_those_of_the_server(void **state) {
    static const size_t none[] = {1, 0, 1, 2}, huge[] = {SIZE_MAX / 2, 3, 1, 2};
    static const size_t deep[] = {1, 1, 1, 1, 1, 1};
    static const ptrdiff_t odd[] = {4, 4, 4, 4, 4, 4};
    static const float bad[] = {1, 2, 3, NAN, 5, 6};

    (void)state;
    refuse(ATTN_E_VALUE, "Missing key: queries is required", NULL, NULL, 0);
    refuse(ATTN_E_FORMAT, "Malformed JSON: line 1, column 1", "{", small_arrays, 2);
    refuse(ATTN_E_VALUE, "Unknown key: 'is_causal'", "{\"is_causal\":true}", small_arrays,
           2);
    refuse(ATTN_E_VALUE, "Duplicate key: 'keys' appears twice", "{\"keys\":[[[1,2]]]}",
           small_arrays, 2);
    refuse_array(ATTN_E_VALUE, "Unknown key: 'query' is not an array of a request",
                 (attn_array){"query", "F32", 4, small_shape, NULL, small_numbers});
    refuse_array(ATTN_E_VALUE, "put it into the options",
                 (attn_array){"causal", "BOOL", 0, NULL, NULL, small_numbers});
    refuse_array(ATTN_E_VALUE, "Wrong dtype: values has dtype <U3",
                 (attn_array){"values", "<U3", 4, small_shape, NULL, small_numbers});
    refuse_array(ATTN_E_VALUE, "Wrong dtype: values has dtype I64; send it as F32",
                 (attn_array){"values", "I64", 4, small_shape, NULL, small_numbers});
    refuse_array(ATTN_E_SHAPE, "Empty tensor: values has a dimension of 0",
                 (attn_array){"values", "F32", 4, none, odd, NULL});
    refuse_array(ATTN_E_SHAPE, "Wrong rank: values has rank 6",
                 (attn_array){"values", "F32", 6, deep, odd, small_numbers});
    refuse_array(ATTN_E_SHAPE, "Wrong rank: values has shape []",
                 (attn_array){"values", "F32", 0, NULL, NULL, small_numbers});
    refuse_array(ATTN_E_OVERFLOW, "Request too large: values has more elements",
                 (attn_array){"values", "F32", 4, huge, odd, small_numbers});
    refuse_array(ATTN_E_VALUE, "values[0][1][0][1]",
                 (attn_array){"values", "F32", 4, small_shape, NULL, bad});
}

static void test_too_large_results_name_what_is_smaller(void **state) {
    static const size_t long_shape[] = {500000, 1, 1};
    static const ptrdiff_t same[] = {0, 0, 0};
    const attn_array arrays[] = {
        {"queries", "F32", 3, long_shape, same, small_numbers},
        {"keys", "F32", 3, long_shape, same, small_numbers},
    };

    (void)state;
    refuse(ATTN_E_NOMEM, "of which weights 1000000000000, but ", NULL, arrays, 2);
    refuse(ATTN_E_NOMEM, "need received, top, entropy or blocks", NULL, arrays, 2);
}

/* Numbers close to the middle of two float32, and small ones, are read by strtod(). */
static void test_numbers_do_not_depend_on_the_locale(void **state) {
    static const char options[] =
        "{\"queries\":[[[1.5e-40]]],\"keys\":[[[1e38]]],\"scale\":2.5,"
        "\"need\":[\"lse\"]}";
    static const char *const locales[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"};
    char *before = strdup(setlocale(LC_ALL, NULL));
    attn_reply *expected = call(options, NULL, 0);

    (void)state;
    for (size_t i = 0; i < sizeof locales / sizeof locales[0]; i++) {
        setlocale(LC_ALL, locales[i]); /* does nothing where it is not installed */
        assert_same_reply(expected, call(options, NULL, 0));
    }
    setlocale(LC_ALL, before);
    free(before);
    attn_reply_destroy(expected);
}

static void test_stop_ends_a_call(void **state) {
    const int stop = 1;
    attn_reply *reply = NULL;
    attn_error error;

    (void)state;
    assert_int_equal(attn_call(pool, NULL, NULL, small_arrays, 3, &stop, &reply, &error),
                     ATTN_E_STOPPED);
    assert_string_equal(error.text, "the caller has stopped it");
    assert_int_equal(attn_call(pool, NULL, "{\"timeout_ms\":1e-6}", small_arrays, 3, NULL,
                               &reply, &error),
                     ATTN_E_STOPPED);
    assert_null(reply);
}

static void test_failing_allocations(void **state) {
    attn_error error;
    (void)state;
    for (size_t nth = 1;; nth++) {
        attn_pool *own = NULL;
        attn_reply *reply = NULL;
        fail_alloc_at(nth);
        attn_status status = attn_pool_create(1, &own, &error);
        if (status == ATTN_OK)
            status = attn_call(own, NULL, "{\"need\":[\"lse\"]}", small_arrays, 3, NULL,
                               &reply, &error);
        attn_pool_destroy(own);
        if (!fail_alloc_stop()) {
            assert_int_equal(status, ATTN_OK);
            attn_reply_destroy(reply);
            return;
        }
        assert_int_equal(status, ATTN_E_NOMEM);
        assert_null(reply);
    }
}

/* --- threads --- */

#define LONG_ROWS 700

static float long_numbers[LONG_ROWS * 2 * 64];
static const size_t long_shape[] = {LONG_ROWS, 2, 64};
static const attn_array long_arrays[] = {
    {"queries", "F32", 3, long_shape, NULL, long_numbers},
    {"keys", "F32", 3, long_shape, NULL, long_numbers},
};
static const char long_options[] = "{\"need\":[\"received\",\"entropy\"]}";

static void *call_often(void *expected) {
    for (int i = 0; i < 4; i++)
        assert_same_reply(expected, call(long_options, long_arrays, 2));
    return NULL;
}

static void test_eight_threads_share_a_pool(void **state) {
    uint64_t seed = unit_seed(20261129);
    pthread_t threads[8];

    (void)state;
    random_fill(&seed, long_numbers, sizeof long_numbers / sizeof long_numbers[0]);
    attn_reply *expected = call(long_options, long_arrays, 2);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, expected), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    attn_reply_destroy(expected);
}

/* --- models --- */

static void test_a_model_computes_as_by_json(void **state) {
    static const size_t shape[] = {6, 3};
    attn_model *model = NULL;
    attn_reply *by_json = NULL, *by_arrays = NULL;
    char body[2048] = "{\"queries\":[";
    float numbers[18];
    attn_error error;

    (void)state;
    assert_int_equal(attn_model_demo("journey", NULL, &model, &error), ATTN_OK);
    for (size_t i = 0; i < 18; i++) {
        numbers[i] = (float)i / 16;
        sprintf(body + strlen(body), "%s%s%.10g%s", i > 0 ? "," : "",
                i % 3 == 0 ? "[" : "", (double)numbers[i], i % 3 == 2 ? "]" : "");
    }
    strcat(body, "],\"need_weights\":true}");
    const attn_array queries = {"queries", "F32", 2, shape, NULL, numbers};
    assert_int_equal(attn_call(pool, model, body, NULL, 0, NULL, &by_json, &error),
                     ATTN_OK);
    assert_int_equal(attn_call(pool, model, "{\"need_weights\":true,\"model\":\"x\"}",
                               &queries, 1, NULL, &by_arrays, &error),
                     ATTN_OK);
    assert_string_equal(attn_reply_text(by_json), "{\"model\":\"journey\"}");
    assert_same_reply(by_json, by_arrays);
    attn_reply_destroy(by_json);
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays_are_the_same_as_json),
        cmocka_unit_test(test_integers_and_booleans),
        cmocka_unit_test(test_lengths_of_sequences),
        cmocka_unit_test(test_errors_are_those_of_the_server),
        cmocka_unit_test(test_too_large_results_name_what_is_smaller),
        cmocka_unit_test(test_numbers_do_not_depend_on_the_locale),
        cmocka_unit_test(test_stop_ends_a_call),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_eight_threads_share_a_pool),
        cmocka_unit_test(test_a_model_computes_as_by_json),
    };
    return cmocka_run_group_tests(tests, make_pool, drop_pool);
}
