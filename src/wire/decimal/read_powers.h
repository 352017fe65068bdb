/* SPDX-License-Identifier: Apache-2.0 */
/* read_powers.h: powers of ten in 64 bits, for reading numbers. */
#ifndef ATTND_WIRE_DECIMAL_READ_POWERS_H
#define ATTND_WIRE_DECIMAL_READ_POWERS_H

#include <stdint.h>

/* 19 digits times these powers are all that a normal float32 can be. */
#define WIRE_READ_POWERS_MIN (-57)
#define WIRE_READ_POWERS_MAX 38

/* The leading 64 bits of 10^(WIRE_READ_POWERS_MIN + i), the rest cut off; the first is 1. */
extern const uint64_t wire_read_powers[WIRE_READ_POWERS_MAX - WIRE_READ_POWERS_MIN + 1];

#endif
