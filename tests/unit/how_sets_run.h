/* SPDX-License-Identifier: Apache-2.0 */
/* how_sets_run.h: says how a set of kernels runs; .ci/run prints these lines. Include it
 * after cmocka.h. */
#ifndef ATTND_TESTS_HOW_SETS_RUN_H
#define ATTND_TESTS_HOW_SETS_RUN_H

#include "math/kernels/kernels.h"

static inline void print_how_set_runs(const struct kernels *set) {
    print_message("kernels: %s %s, %s\n", set->name, set->k_step == 2 ? "bf16" : "f32",
                  set->by_model ? "by the model" : "native");
}

#endif
