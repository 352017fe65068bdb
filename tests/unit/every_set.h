/* SPDX-License-Identifier: Apache-2.0 */
/* every_set.h: runs tests with each set of kernels that this build and CPU have. Include
 * it after cmocka.h. */
#ifndef ATTND_TESTS_EVERY_SET_H
#define ATTND_TESTS_EVERY_SET_H

#include "how_sets_run.h"
#include "math/kernels/kernels.h"

#include <stdio.h>

static const struct kernels *kernels; /* what the tests are to use */

/* Returns how many tests failed, of all sets. */
static int run_with_every_set(const struct CMUnitTest *tests, size_t count) {
    int failures = 0;

    for (size_t i = 0; (kernels = kernels_available(i)) != NULL; i++) {
        char name[64];

        snprintf(name, sizeof name, "%s, %s", kernels->name,
                 kernels->k_step == 2 ? "bf16" : "f32");
        print_how_set_runs(kernels);
        failures += _cmocka_run_group_tests(name, tests, count, NULL, NULL);
    }
    return failures;
}

#endif
