/* SPDX-License-Identifier: Apache-2.0 */
/* print_avx2.h: finds the shortest decimals of many float32 together. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define WIRE_DIGITS_BATCH 16

/* Decimals first.rest * 10^exponent of nine digits, with zeros at the end. */
struct wire_digits {
    uint64_t first[WIRE_DIGITS_BATCH];   /* 1..9 */
    uint64_t rest[WIRE_DIGITS_BATCH];    /* one digit in each byte, lowest byte first */
    int64_t exponent[WIRE_DIGITS_BATCH]; /* of the first digit */
    uint64_t special[WIRE_DIGITS_BATCH]; /* not 0 for zeros and subnormals, whose other
                                            members are unspecified */
};

/* Returns whether this build and CPU can run wire_digits_find(). */
bool wire_digits_available(void);

/* Finds the digits of the magnitudes of finite values: those that wire_float_print()
 * prints. Thread-safe. */
void wire_digits_find(const float values[WIRE_DIGITS_BATCH],
                      struct wire_digits *ret_digits);
