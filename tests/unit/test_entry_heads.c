/* SPDX-License-Identifier: Apache-2.0 */
/* test_entry_heads.c: what heads do over several calls of a program, with a model and
 * without, and in a process that was forked; ThreadSanitizer cannot follow one. */
#include "random_model.h"
#include "seed.h"

#include <attnd/heads.h>
#include <attnd/program.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

static attn_pool *pool;
static float numbers[700 * 2 * 64];

static int make_pool(void **state) {
    (void)state;
    return attn_pool_create(3, &pool, NULL);
}

static int drop_pool(void **state) {
    (void)state;
    attn_pool_destroy(pool);
    return 0;
}

static attn_reply *call_heads(const attn_model *model, const char *options,
                              const attn_array *arrays, size_t count) {
    attn_reply *reply = NULL;
    attn_error error = {.text = ""};
    if (attn_call_heads(pool, model, options, arrays, count, NULL, &reply, &error) !=
        ATTN_OK)
        fail_msg("%s", error.text);
    assert_string_equal(attn_reply_array(reply, 0)->name, "sums");
    assert_null(attn_reply_array(reply, 1));
    return reply;
}

/* A model multiplies the contributions of several rows in float32. */
static void assert_same_sums(const attn_reply *a, const attn_reply *b, double most) {
    const attn_array *one = attn_reply_array(a, 0), *other = attn_reply_array(b, 0);
    const double *left = one->data, *right = other->data;

    assert_int_equal(one->shape[0], other->shape[0]);
    for (size_t i = 0; i < one->shape[0]; i++)
        assert_true(fabs(left[i] - right[i]) <= most * (1 + fabs(left[i])));
    if (most == 0)
        assert_string_equal(attn_reply_text(a), attn_reply_text(b));
}

/* Describes two sequences at once, and one after the other. */
static void check_heads(const attn_model *model, size_t rank, const size_t *shape,
                        const char *options) {
    const size_t size = shape[1] * shape[2] * (rank > 3 ? shape[3] : 1);
    attn_array arrays[3] = {{"queries", "F32", rank, shape, NULL, numbers},
                            {"keys", "F32", rank, shape, NULL, numbers}};
    attn_reply *both = call_heads(model, options, arrays, 2);

    arrays[0].rank = arrays[1].rank = rank - 1;
    arrays[0].shape = arrays[1].shape = shape + 1;
    attn_reply *first = call_heads(model, options, arrays, 2);
    arrays[0].data = arrays[1].data = numbers + size;
    arrays[2] = *attn_reply_array(first, 0);
    attn_reply *second = call_heads(model, options, arrays, 3);
    assert_string_not_equal(attn_reply_text(first), attn_reply_text(second));
    assert_same_sums(both, second, model == NULL ? 0 : 1e-6);
    attn_reply_destroy(second);
    attn_reply_destroy(first);
    attn_reply_destroy(both);
}

static void test_heads_add_up_over_calls(void **state) {
    static const size_t given[] = {2, 40, 2, 16}, rows[] = {2, 12, 32};
    uint64_t seed = unit_seed(20261130);
    attn_model *model;

    (void)state;
    random_fill(&seed, numbers, sizeof numbers / sizeof numbers[0]);
    check_heads(NULL, 4, given, "{\"causal\":true,\"need\":[\"lse\"]}");
    assert_int_equal(attn_model_demo("patterns", NULL, &model, NULL), ATTN_OK);
    check_heads(model, 3, rows, "{\"model\":\"x\"}");
    attn_model_destroy(model);
}

static const size_t small_shape[] = {1, 3, 1, 2};
static const float small_numbers[] = {1, 0, 0, 1, 1, 1};

static void test_heads_without_a_model(void **state) {
    attn_array arrays[3] = {{"queries", "F32", 4, small_shape, NULL, small_numbers},
                            {"keys", "F32", 4, small_shape, NULL, small_numbers}};
    attn_reply *reply = call_heads(NULL, "{\"targets\":[[[0,1],null,[0,3]]]}", arrays, 2);
    const char *text = attn_reply_text(reply);
    attn_reply *refused = NULL;
    attn_error error;

    (void)state;
    assert_non_null(strstr(text, "\"heads\":[{\"entropy\":"));
    assert_null(strstr(text, "importance"));
    assert_null(strstr(text, "gram"));
    assert_null(strstr(text, "unused"));
    assert_null(strstr(text, "\"mass_on_target\":null"));
    arrays[2] = *attn_reply_array(reply, 0);
    arrays[2].shape = small_shape;
    assert_int_equal(attn_call_heads(pool, NULL, NULL, arrays, 3, NULL, &refused, &error),
                     ATTN_E_SHAPE);
    assert_non_null(strstr(error.text, "sums is not what an earlier call returned"));
    attn_reply_destroy(reply);
}

static void test_keys_are_queries_where_a_request_says_so(void **state) {
    float others[sizeof small_numbers / sizeof small_numbers[0]];
    attn_array arrays[2] = {{"queries", "F32", 4, small_shape, NULL, small_numbers},
                            {"keys", "F32", 4, small_shape, NULL, others}};

    memcpy(others, small_numbers, sizeof others);
    (void)state;
    for (int own = 0; own < 2; own++) {
        const char *options = own ? "{\"self_attention\":true}" : NULL;
        attn_reply *reply = call_heads(NULL, options, arrays, 2);
        const char *null = strstr(attn_reply_text(reply), "\"mass_on_self\":null");
        assert_int_equal(null == NULL, own);
        attn_reply_destroy(reply);
    }
}

/* Compares the entropy of each head with that of its rows, for keys of both kinds of
 * layout and of 16 bits. */
static void test_entropy_is_that_of_attention(void **state) {
    static const char options[] = "{\"causal\":true,\"need\":[\"entropy\"]}";
    static uint16_t keys[300 * 2 * 32];

    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        memcpy(&keys[i], (const char *)&numbers[i] + 2, 2);
    for (size_t rows = 5; rows <= 300; rows += 295) {
        const size_t shape[] = {rows, 4, 32}, key_shape[] = {rows, 2, 32};
        const attn_array arrays[] = {{"queries", "F32", 3, shape, NULL, numbers},
                                     {"keys", "BF16", 3, key_shape, NULL, keys}};
        attn_reply *heads = call_heads(NULL, options, arrays, 2), *reply = NULL;
        assert_int_equal(attn_call(pool, NULL, options, arrays, 2, NULL, &reply, NULL),
                         ATTN_OK);
        const attn_head_sums *sums = attn_reply_array(heads, 0)->data;
        const float *entropy = attn_reply_array(reply, 0)->data;
        for (size_t h = 0; h < 4; h++) {
            double sum = 0;
            for (size_t row = 0; row < rows; row++)
                sum += (double)entropy[row * 4 + h];
            assert_true(fabs(sums[h].entropy - sum) <= 1e-5 * sum);
        }
        attn_reply_destroy(reply);
        attn_reply_destroy(heads);
    }
}

static void test_a_forked_process_has_threads_of_its_own(void **state) {
    static const size_t shape[] = {700, 2, 64};
    const attn_array arrays[] = {{"queries", "F32", 3, shape, NULL, numbers},
                                 {"keys", "F32", 3, shape, NULL, numbers}};
    attn_reply *expected = call_heads(NULL, NULL, arrays, 2);
    int code = -1;

    (void)state;
    pid_t child = fork();
    attn_reply *reply = call_heads(NULL, NULL, arrays, 2);
    int differs = strcmp(attn_reply_text(expected), attn_reply_text(reply)) != 0;
    attn_reply_destroy(reply);
    attn_reply_destroy(expected);
    if (child == 0) {
        attn_pool_destroy(pool);
        _exit(differs);
    }
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_int_equal(code, 0);
    assert_int_equal(differs, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_add_up_over_calls),
        cmocka_unit_test(test_heads_without_a_model),
        cmocka_unit_test(test_keys_are_queries_where_a_request_says_so),
        cmocka_unit_test(test_entropy_is_that_of_attention),
        cmocka_unit_test(test_a_forked_process_has_threads_of_its_own),
    };
    return cmocka_run_group_tests(tests, make_pool, drop_pool);
}
