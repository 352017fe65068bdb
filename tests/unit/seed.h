/* SPDX-License-Identifier: Apache-2.0 */
/* seed.h: what the tests draw from. */
#ifndef ATTND_TESTS_SEED_H
#define ATTND_TESTS_SEED_H

#include <stdint.h>
#include <stdlib.h>

/* Returns the seed of a test, which is its `own` one unless UNIT_SEED is set: then all
 * tests draw other numbers, for each value others. No seed is 0. */
static inline uint64_t unit_seed(uint64_t own) {
    const char *text = getenv("UNIT_SEED");
    uint64_t shift = text != NULL ? strtoull(text, NULL, 10) : 0;
    uint64_t seed =
        own ^ shift * 0x9e3779b97f4a7c15; /* the golden ratio: bits are mixed */

    return seed != 0 ? seed : 1;
}

#endif
