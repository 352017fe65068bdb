/* SPDX-License-Identifier: Apache-2.0 */
/* powers.h: powers of ten to 64 bits, for reading and printing numbers. */
#pragma once

#include <stdint.h>

/* Printing every float32 takes powers from -31 on. */
#define WIRE_POWERS_MIN (-57)
#define WIRE_POWERS_MAX 45

/* The first 64 bits of 10^(WIRE_POWERS_MIN + i), cut off; the highest bit is 1. */
extern const uint64_t wire_powers[WIRE_POWERS_MAX - WIRE_POWERS_MIN + 1];
