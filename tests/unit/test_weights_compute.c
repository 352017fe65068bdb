/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_compute.c: the models of all layers of tests/data/hf, computed by the
 * reference in float64, give what transformers computes. */
#include "fail_alloc.h"
#include "families_expected.h"
#include "family_models.h"

#include <attnd/library.h>

static void test_layers_compute_what_transformers_does(void **state) {
    (void)state;
    for (size_t i = 0; i < num_expected;) {
        const char *name = expected[i].folder;
        struct folder *folder = must_open(name, NULL);
        size_t count;
        const struct layer *layers = folder_get_layers(folder, &count);
        double worst = 0;

        for (size_t j = 0; j < count; j++, i++) {
            struct layer_case want = read_layer_case(name, layers[j].part);
            double error = run_layer(&layers[j], &want);
            if (read_axes_case(name, layers[j].part, &want))
                error = fmax(error, run_layer(&layers[j], &want));
            if (!(error <= FAMILY_TOLERANCE))
                fail_msg("%s %s: the worst error is %.3g", name, layers[j].part, error);
            worst = fmax(worst, error);
            free_layer_case(&want);
        }
        print_message("%s: worst error %.2g\n", name, worst);
        folder_close(folder);
    }
}

/* Transposed weights, pairs of rows, tables of biases and positional rows take memory of
 * their own. */
static void test_each_allocation_may_fail(void **state) {
    static const char *const folders[] = {
        "gpt2", "gptj", "t5", "deberta-v2", "deberta-v2_apart", "wav2vec2-bert"};
    (void)state;

    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        struct folder *folder = must_open(folders[i], NULL);
        size_t count, nth = 1;
        const struct layer *layer = folder_get_layers(folder, &count);
        attn_model_info info = layer->info;
        attn_status status;
        info.pre_norm.applied = info.pre_norm.kind != ATTN_NORM_NONE;

        do {
            attn_model *model = NULL;
            attn_error error = {.text = "memory"};
            fail_alloc_at(nth++);
            status = attn_model_create(&info, &model);
            if (status == ATTN_OK)
                status = layer_read_model(layer, model, &error);
            assert_int_equal(status, fail_alloc_stop() ? ATTN_E_NOMEM : ATTN_OK);
            assert_text_has(error.text, "memory");
            attn_model_destroy(model);
        } while (status != ATTN_OK);
        assert_true(nth > 8);
        folder_close(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_compute_what_transformers_does),
        cmocka_unit_test(test_each_allocation_may_fail),
    };
    if (attn_init(NULL) != ATTN_OK)
        return 1;
    return cmocka_run_group_tests(tests, read_expected, NULL);
}
