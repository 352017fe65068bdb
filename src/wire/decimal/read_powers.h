/* SPDX-License-Identifier: Apache-2.0 */
/* read_powers.h: powers of ten to 64 bits, for reading numbers. */
#ifndef ATTND_WIRE_DECIMAL_READ_POWERS_H
#define ATTND_WIRE_DECIMAL_READ_POWERS_H

#include <stdint.h>

/* 19 digits times one of these powers give every normal float32. */
#define WIRE_READ_POWERS_MIN (-57)
#define WIRE_READ_POWERS_MAX 38

/* The first 64 bits of 10^(WIRE_READ_POWERS_MIN + i), cut off; the highest bit is 1. */
extern const uint64_t wire_read_powers[WIRE_READ_POWERS_MAX - WIRE_READ_POWERS_MIN + 1];

#endif
