/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_compute.c: the models of all layers of tests/data/hf, computed by the
 * reference in float64, give what transformers computes. */
#include "family_models.h"

#include <attnd/library.h>

static void test_layers_compute_what_transformers_does(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_EXPECTED;) {
        const char *name = expected[i].folder;
        struct folder *folder = must_open(name, NULL);
        size_t count;
        const struct layer *layers = folder_get_layers(folder, &count);
        double worst = 0;

        for (size_t j = 0; j < count; j++, i++) {
            struct layer_case want = read_layer_case(name, layers[j].part);
            double error = run_layer(&layers[j], &want);
            if (!(error <= tolerance))
                fail_msg("%s %s: the worst error is %.3g", name, layers[j].part, error);
            worst = fmax(worst, error);
            free_layer_case(&want);
        }
        print_message("%s: worst error %.2g\n", name, worst);
        folder_close(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_compute_what_transformers_does),
    };
    if (attn_init(NULL) != ATTN_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
