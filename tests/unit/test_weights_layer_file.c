/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_layer_file.c: files that say all about a layer, and bad ones. */
#include "fail_alloc.h"
#include "new_file.h"
#include "random_model.h"

#include "math/model.h"
#include "safetensors/file.h"
#include "safetensors/write.h"
#include "weights/checkpoint.h"
#include "weights/layer_file.h"

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <attnd/library.h>
#include <cmocka.h>
#include <string.h>

static int begin(void **state) {
    return attn_init(NULL) == ATTN_OK ? make_folder(state) : -1;
}

/* Loads a file that is removed then. */
static attn_status load_and_remove(attn_model **ret_model, attn_error *ret_error) {
    attn_status status = attn_model_load("m", path, NULL, NULL, ret_model, ret_error);
    assert_int_equal(unlink(path), 0);
    return status;
}

/* Compares two lists of frequencies, bit for bit. */
static void compare_frequencies(const double *a, const double *b, size_t count) {
    assert_int_equal(a == NULL, b == NULL);
    for (size_t i = 0; a != NULL && i < count; i++)
        assert_true(a[i] == b[i]);
}

static void compare_models(attn_model *a, attn_model *b) {
    struct model_array left[MODEL_ARRAYS], right[MODEL_ARRAYS];
    const struct model_rotation *x = &a->rotation, *y = &b->rotation;

    assert_true(a->info.scale == b->info.scale && a->info.softcap == b->info.softcap);
    assert_true(a->info.clip == b->info.clip && a->info.window == b->info.window);
    assert_true(a->info.head_norm_eps == b->info.head_norm_eps);
    assert_true(a->info.pre_norm_eps == b->info.pre_norm_eps);
    assert_int_equal(a->info.head_norm, b->info.head_norm);
    assert_int_equal(a->info.causal, b->info.causal);
    model_list_arrays(a, left);
    model_list_arrays(b, right);
    for (size_t i = 0; i < MODEL_ARRAYS; i++) {
        assert_int_equal(left[i].present, right[i].present);
        if (left[i].present)
            assert_memory_equal(*left[i].pointer, *right[i].pointer,
                                left[i].rows * left[i].columns * sizeof(float));
    }
    compare_frequencies(x->frequencies, y->frequencies, a->info.rope_size / 2);
    compare_frequencies(x->long_frequencies, y->long_frequencies, a->info.rope_size / 2);
    assert_true(x->magnitude == y->magnitude && x->factor == y->factor);
    assert_int_equal(x->max_length, y->max_length);
}

/* A random layer with dot products and an output projection. */
static attn_model *make_layer(uint64_t *seed) {
    for (;;) {
        attn_model_info info = random_model_info(seed);
        info.scoring = ATTN_SCALED_DOT_PRODUCT;
        info.additive_size = 0;
        random_add_features(seed, RANDOM_EVERYTHING, &info);
        if (info.output_projection && !info.head_norm_whole)
            return random_model(seed, &info);
    }
}

static void test_layer_is_read_as_it_was_written(void **state) {
    uint64_t seed = 23;
    attn_error error = {ATTN_OK, ""};
    (void)state;

    for (size_t i = 0; i < 60; i++) {
        attn_model *model = make_layer(&seed), *loaded = NULL;
        attn_model_info described;
        assert_int_equal(layer_file_write(model, path, &error), ATTN_OK);
        assert_int_equal(checkpoint_describe(path, NULL, NULL, true, &described, &error),
                         ATTN_OK);
        assert_int_equal(described.num_kv_heads, model->info.num_kv_heads);
        if (load_and_remove(&loaded, &error) != ATTN_OK)
            fail_msg("%s", error.text);
        compare_models(model, loaded);
        attn_model_destroy(loaded);
        attn_model_destroy(model);
    }
}

static void test_options_of_other_files_are_refused(void **state) {
    const attn_model_options options = {.num_heads = 2};
    uint64_t seed = 29;
    attn_model *model = make_layer(&seed), *loaded;
    attn_error error;
    (void)state;

    assert_int_equal(layer_file_write(model, path, &error), ATTN_OK);
    assert_int_equal(attn_model_load("m", path, &options, NULL, &loaded, &error),
                     ATTN_E_VALUE);
    assert_non_null(strstr(error.text, "leave out the options"));
    assert_int_equal(unlink(path), 0);
    attn_model_destroy(model);
}

/* A layer of one head of size 2, and what becomes of it with one entry changed. */
static void test_bad_entries_are_refused_by_their_key(void **state) {
    static const struct {
        const char *key, *value, *words; /* value NULL: the entry is left out */
    } cases[] = {
        {"scale", NULL, "scale is missing"},
        {"scale", "-1", "scale is '-1'"},
        {"scale", "NaN", "scale is 'NaN'"},
        {"num_heads", "0", "num_heads is '0'"},
        {"num_heads", "2147483648", "num_heads is '2147483648'"},
        {"num_heads", "3", "num_kv_heads is missing in __metadata__, or does not fit"},
        {"num_heads", "16777216", "tensor 'query.weight' has another shape"},
        {"causal", "yes", "causal is 'yes'"},
        {"head_norm", "batch", "head_norm is 'batch'"},
        {"head_norm", "rms", "head_norm_eps is missing"},
        {"rope_size", "3", "rope_size is missing in __metadata__, or does not fit"},
        {"rope_size", "2", "rope_type is missing"},
        {"sinks", "true", "tensor 'sinks' is missing"},
        {"query_bias", "true", "tensor 'query.bias' is missing"},
        {"query_size", "3", "tensor 'query.weight' has another shape than [4,3]"},
    };
    static const float weight[4 * 4];
    static const char *const names[] = {"query.weight", "key.weight", "value.weight",
                                        "output.weight"};
    struct safetensors_source tensors[4];
    (void)state;

    for (size_t i = 0; i < 4; i++)
        tensors[i] = (struct safetensors_source){names[i], weight, 4, 4};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct safetensors_text entries[16] = {
            {"layout", "attnd"}, {"query_size", "4"}, {"key_size", "4"},
            {"value_size", "4"}, {"out_size", "4"},   {"num_heads", "2"},
            {"head_size", "2"},  {"scale", "0.5"},    {"num_kv_heads", "2"}};
        size_t count = 9, at = 0;
        attn_model *model;
        attn_error error;

        while (at < count && strcmp(entries[at].key, cases[i].key) != 0)
            at++;
        count += at == count;
        entries[at] = (struct safetensors_text){cases[i].key, cases[i].value};
        if (cases[i].value == NULL)
            entries[at] = entries[--count];
        assert_int_equal(safetensors_write_file(path, tensors, 4, entries, count, &error),
                         ATTN_OK);
        assert_int_not_equal(load_and_remove(&model, &error), ATTN_OK);
        if (strstr(error.text, cases[i].words) == NULL)
            fail_msg("%s: %s", cases[i].words, error.text);
    }
}

static void test_layer_file_survives_every_failed_allocation(void **state) {
    uint64_t seed = 33;
    attn_model *model = make_layer(&seed), *loaded = NULL;
    size_t nth;
    (void)state;

    while (model->info.rope_size == 0) {
        attn_model_destroy(model);
        model = make_layer(&seed);
    }
    for (nth = 1;; nth++) {
        attn_error error = {ATTN_OK, ""};
        fail_alloc_at(nth);
        attn_status status = layer_file_write(model, path, &error);
        if (status == ATTN_OK)
            status = attn_model_load("m", path, NULL, NULL, &loaded, &error);
        bool failed = fail_alloc_stop();
        unlink(path);
        assert_false(exists(part));
        if (!failed) {
            assert_int_equal(status, ATTN_OK);
            break;
        }
        if (status == ATTN_OK) /* jansson can do without some */
            attn_model_destroy(loaded);
        else
            assert_int_equal(status, ATTN_E_NOMEM);
    }
    assert_true(nth > 20);
    attn_model_destroy(loaded);
    attn_model_destroy(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layer_is_read_as_it_was_written),
        cmocka_unit_test(test_options_of_other_files_are_refused),
        cmocka_unit_test(test_bad_entries_are_refused_by_their_key),
        cmocka_unit_test(test_layer_file_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests_name("layer_file", tests, begin, remove_folder);
}
