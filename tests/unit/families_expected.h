/* SPDX-License-Identifier: Apache-2.0 */
/* families_expected.h: what each layer of each folder of tests/data/hf must be found to
 * be, as tests/data/hf/EXPECTED says. */
#ifndef ATTND_TESTS_FAMILIES_EXPECTED_H
#define ATTND_TESTS_FAMILIES_EXPECTED_H

#include "family_cases.h"

#include "weights/layer/make.h"

#define EXPECTED_MAX 1000

static struct expected_layer {
    const char *folder, *part;
    const char *features; /* of layer_describe_features() */
} expected[EXPECTED_MAX];
static size_t num_expected;

/* Reads lines such as "gpt2 0: causal, layer norm before": all layers of a folder, in
 * their order. A set-up of cmocka. */
static inline int read_expected(void **state) {
    static char text[EXPECTED_MAX * FEATURES_TEXT_SIZE];
    char *next = text;
    FILE *file = fopen(FOLDERS "EXPECTED", "r");
    (void)state;

    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
    for (num_expected = 0; *next != '\0'; num_expected++) {
        char *folder = strsep(&next, " ");
        char *part = strsep(&next, ":");
        char *features = strsep(&next, "\n");
        assert_true(num_expected < EXPECTED_MAX && next != NULL);
        expected[num_expected] = (struct expected_layer){folder, part, features + 1};
    }
    return 0;
}

#endif
