/* SPDX-License-Identifier: Apache-2.0 */
/* finite.h: finds infinities and NaN among many numbers. */
#ifndef ATTND_BASE_FINITE_H
#define ATTND_BASE_FINITE_H

#include <stddef.h>

/* Returns the index of the first number that is infinite or NaN, or `count` when all are
 * finite. It runs at the speed of memory. Thread-safe. */
size_t finite_end(const float *numbers, size_t count);

#endif
