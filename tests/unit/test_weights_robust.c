/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_robust.c: for any content of a file, and any allocation that fails,
 * loading ends with a model or with one line. It is most useful with the sanitizers. */
#include "fail_alloc.h"
#include "weights_create.h"

#include <jansson.h>

static const attn_model_options two_heads = {.num_heads = 2};

/* Loads bytes that may be anything; returns whether they were accepted. */
static bool load_anything(const unsigned char *bytes, size_t size) {
    struct safetensors *file = NULL;
    attn_model *model = NULL;
    attn_error error = {ATTN_OK, ""};
    attn_status status = safetensors_open_memory(bytes, size, &file, &error);
    if (status == ATTN_OK)
        status = checkpoint_create_model("m", file, &two_heads, NULL, &model, &error);
    safetensors_close(file);
    if (status != ATTN_OK) {
        assert_null(model);
        assert_int_equal(error.status, status);
        assert_true(error.text[0] != '\0');
        assert_null(strchr(error.text, '\n'));
        return false;
    }
    assert_non_null(model);
    attn_model_destroy(model);
    return true;
}

enum small_model { SMALL_ALL, SMALL_TWO_STAGE, SMALL_OWN, NUM_SMALL };

/* Makes a file with every kind of tensor, in less than 1 kB. */
static unsigned char *make_small_model(enum small_model kind, size_t *ret_size) {
    struct weights_file made = {0};
    if (kind == SMALL_TWO_STAGE) {
        static const char *const names[] = {
            "W_Q.weight",         "W_K.weight",         "W_V.weight",
            "heads.0.W_Q.weight", "heads.0.W_K.weight", "heads.0.W_V.weight",
            "heads.1.W_Q.weight", "heads.1.W_K.weight", "heads.1.W_V.weight"};
        for (size_t i = 0; i < 9; i++)
            file_add_f32(&made, names[i], 1, 1, (double)i);
        file_add_f32(&made, "W_O.weight", 1, 2, 1);
    } else if (kind == SMALL_OWN) {
        file_add_text(&made,
                      "\"__metadata__\":{\"num_heads\":\"2\",\"q\":\"wq\","
                      "\"k\":\"wk\",\"v\":\"wv\",\"o\":\"wo\",\"transposed\":\"true\"}");
        file_add_f32(&made, "wq.weight", 1, 2, 1);
        file_add_f32(&made, "wq.bias", 2, 0, 1);
        file_add_f32(&made, "wk", 1, 2, 1);
        file_add_f32(&made, "wv", 1, 2, 1);
        file_add_f32(&made, "wo", 2, 1, 1);
    } else {
        file_add_text(&made, "\"__metadata__\":{\"num_heads\":\"2\"}");
        file_add_f32(&made, "W_q.weight", 2, 2, 1);
        file_add(&made, "W_q.bias", "F16", "[2]", "\0\x3c\0\x3c", 4);
        file_add_f32(&made, "W_k.weight", 2, 1, 1);
        file_add_f32(&made, "W_v.weight", 2, 1, 1);
        file_add_f32(&made, "W_o.weight", 1, 2, 1);
        file_add_f32(&made, "attention.W_q.weight", 1, 1, 1);
        file_add_f32(&made, "attention.W_k.weight", 1, 1, 1);
        file_add_f32(&made, "attention.w_v.weight", 1, 0, 1);
    }
    unsigned char *bytes = file_make(&made, ret_size);
    assert_true(*ret_size <= 1024);
    assert_true(load_anything(bytes, *ret_size));
    return bytes;
}

static void test_every_shorter_file_is_refused(void **state) {
    (void)state;
    for (int kind = 0; kind < NUM_SMALL; kind++) {
        size_t size;
        unsigned char *bytes = make_small_model((enum small_model)kind, &size);
        for (size_t cut = 0; cut < size; cut++) {
            /* its own block, so that reading past it is seen */
            unsigned char *copy = malloc(cut + 1);
            assert_non_null(copy);
            unsigned char *begin = copy + 1;
            memcpy(begin, bytes, cut);
            assert_false(load_anything(begin, cut));
            free(copy);
        }
        free(bytes);
    }
}

static void test_no_single_flipped_bit_does_harm(void **state) {
    (void)state;
    for (int kind = 0; kind < NUM_SMALL; kind++) {
        size_t size, accepted = 0;
        unsigned char *bytes = make_small_model((enum small_model)kind, &size);
        for (size_t bit = 0; bit < size * 8; bit++) {
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
            accepted += load_anything(bytes, size);
            bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
        print_message("%zu of %zu flips still load\n", accepted, size * 8);
        /* those in the numbers mostly do; those in the structure must not */
        assert_true(accepted > 0 && accepted < size * 8 / 2);
        free(bytes);
    }
}

/* Loads `path` again and again, with one allocation failing each time. Returns how many
 * there are. */
static size_t fail_each_allocation(const char *path, bool only_no_memory) {
    for (size_t nth = 1;; nth++) {
        attn_model *model = NULL;
        attn_error error;
        fail_alloc_at(nth);
        attn_status status = attn_model_load("m", path, &two_heads, NULL, &model, &error);
        if (!fail_alloc_stop()) {
            assert_int_equal(status, ATTN_OK);
            attn_model_destroy(model);
            return nth - 1;
        }
        assert_int_not_equal(status, ATTN_OK);
        assert_null(model);
        if (only_no_memory) {
            assert_int_equal(status, ATTN_E_NOMEM);
            assert_text_has(error.text, "memory");
        }
    }
}

static void test_every_failing_allocation_is_survived(void **state) {
    (void)state;
    json_malloc_t old_malloc;
    json_free_t old_free;
    json_get_alloc_funcs(&old_malloc, &old_free);
    for (int kind = 0; kind < NUM_SMALL; kind++) {
        size_t size;
        char path[64];
        unsigned char *bytes = make_small_model((enum small_model)kind, &size);
        file_write(bytes, size, path);
        size_t ours = fail_each_allocation(path, true);
        /* jansson 2.14 reports a failed allocation of its own as a syntax error, or loses
         * a character of a long token, so another refusal is right too. Where it loses
         * the closing quote, of names of 14, 30, 62, ... bytes, it writes past its own
         * buffer: this test has no such names. */
        json_set_alloc_funcs(malloc, free);
        size_t all = fail_each_allocation(path, false);
        json_set_alloc_funcs(old_malloc, old_free);
        print_message("%zu allocations failed in turn, then %zu with jansson's\n", ours,
                      all);
        assert_true(ours >= 6 && all > ours + 50);
        unlink(path);
        free(bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shorter_file_is_refused),
        cmocka_unit_test(test_no_single_flipped_bit_does_harm),
        cmocka_unit_test(test_every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests_name("weights_robust", tests, NULL, NULL);
}
