/* SPDX-License-Identifier: Apache-2.0 */
/* sample.h: how densely tests sample all float32, and how many random cases they try. */
#ifndef ATTND_TESTS_SAMPLE_H
#define ATTND_TESTS_SAMPLE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Returns `step` times UNIT_SAMPLE, which is 1 by default. Where a test is slow, as in an
 * emulator, a larger one lets it try fewer floats. It is odd, so that an odd step stays
 * odd and meets every last bit. */
static inline uint32_t sample_step(uint32_t step) {
    const char *text = getenv("UNIT_SAMPLE");
    return step * (text != NULL ? (uint32_t)strtoul(text, NULL, 10) | 1 : 1);
}

/* Returns how many of so many random cases to try: one of UNIT_SAMPLE, one at least. */
static inline size_t sample_cases(size_t cases) {
    return (cases - 1) / sample_step(1) + 1;
}

#endif
