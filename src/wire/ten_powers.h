/* SPDX-License-Identifier: Apache-2.0 */
/* ten_powers.h: powers of ten in 64 bits, for reading numbers. */
#ifndef ATTND_WIRE_TEN_POWERS_H
#define ATTND_WIRE_TEN_POWERS_H

#include <stdint.h>

/* 19 digits times these powers are all that a normal float32 can be. */
#define WIRE_TEN_LEAST (-57)
#define WIRE_TEN_MOST  38

/* The leading 64 bits of 10^(WIRE_TEN_LEAST + i), the rest cut off; the first is 1. */
extern const uint64_t wire_ten_powers[WIRE_TEN_MOST - WIRE_TEN_LEAST + 1];

#endif
