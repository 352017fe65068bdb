/* SPDX-License-Identifier: Apache-2.0 */
/* print_avx2.h: the shortest decimals of many float32 at once. */
#ifndef ATTND_WIRE_DECIMAL_PRINT_AVX2_H
#define ATTND_WIRE_DECIMAL_PRINT_AVX2_H

#include <stdbool.h>
#include <stdint.h>

#define WIRE_DIGITS_BATCH 16

/* first.rest * 10^exponent: nine digits, zeros at the end included. */
struct wire_digits {
    uint64_t first[WIRE_DIGITS_BATCH]; /* 1..9 */
    uint64_t rest[WIRE_DIGITS_BATCH];  /* eight digits, one in each byte, the first in the
                                          lowest */
    int64_t exponent[WIRE_DIGITS_BATCH]; /* of the first digit */
    uint64_t
        special[WIRE_DIGITS_BATCH]; /* not 0: zero or subnormal, the rest is rubbish */
};

/* Whether this build and CPU have wire_digits_find(). */
bool wire_digits_available(void);

/* Finds the digits of the magnitudes of finite values; the same as wire_float_print()
 * prints. Thread-safe. */
void wire_digits_find(const float values[WIRE_DIGITS_BATCH],
                      struct wire_digits *ret_digits);

#endif
