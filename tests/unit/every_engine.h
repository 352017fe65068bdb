/* SPDX-License-Identifier: Apache-2.0 */
/* every_engine.h: runs the tests of a file with every engine, instruction set and
 * precision. Include it after cmocka.h. */
#ifndef ATTND_TESTS_EVERY_ENGINE_H
#define ATTND_TESTS_EVERY_ENGINE_H

#include "how_sets_run.h"
#include "math/blas.h"
#include "math/kernels/kernels.h"

#include <attnd/library.h>
#include <attnd/model.h>
#include <stdio.h>

static attn_engine_options engine; /* what the tests run with */

static int init_library(void **state) {
    attn_error error;
    (void)state;
    if (attn_init(&error) == ATTN_OK)
        return 0;
    print_error("%s\n", error.text);
    return -1;
}

/* Returns how many tests failed. */
static int run_with_every_engine(const struct CMUnitTest *tests, size_t count) {
    const char *const engines[] = {"native", blas_engine};
    int failures = 0;

    for (size_t i = 0; kernels_available(i) != NULL; i++) {
        const struct kernels *kernels = kernels_available(i);
        bool bf16 = kernels->k_step == 2;

        print_how_set_runs(kernels);

        for (size_t e = 0; e < (bf16 ? 1 : 2); e++) {
            char name[64];

            engine = (attn_engine_options){.engine = engines[e],
                                           .cpu = kernels->name,
                                           .precision = bf16 ? "bf16" : "f32"};
            snprintf(name, sizeof name, "%s, %s, %s", engine.engine, engine.cpu,
                     engine.precision);
            failures += _cmocka_run_group_tests(name, tests, count, init_library, NULL);
        }
    }
    return failures;
}

#endif
