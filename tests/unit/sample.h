/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h: how densely tests sample all float32. */
#ifndef ATTND_TESTS_SAMPLE_H
#define ATTND_TESTS_SAMPLE_H

#include <stdint.h>
#include <stdlib.h>

/* Returns `step` times UNIT_SAMPLE, which is 1 by default. Where a test is slow, as in an
 * emulator, a larger one lets it try fewer floats. It is odd, so that an odd step stays
 * odd and meets every last bit. */
static inline uint32_t sample_step(uint32_t step) {
    const char *text = getenv("UNIT_SAMPLE");
    return step * (text != NULL ? (uint32_t)strtoul(text, NULL, 10) | 1 : 1);
}

#endif
