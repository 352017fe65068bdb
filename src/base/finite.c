/* SPDX-License-Identifier: Apache-2.0 */
/* finite.c: checks whole blocks without a branch for each number. */
#include "base/finite.h"

#include <math.h>
#include <stdbool.h>

#define FINITE_BLOCK 1024 /* numbers that are checked before the loop may end */

static bool all_finite(const float *numbers, size_t count) {
    bool finite = true;
    for (size_t i = 0; i < count; i++)
        finite &= isfinite(numbers[i]) != 0;
    return finite;
}

size_t finite_end(const float *numbers, size_t count) {
    size_t i = 0;
    while (i < count) {
        size_t block = count - i < FINITE_BLOCK ? count - i : FINITE_BLOCK;
        if (!all_finite(numbers + i, block))
            break;
        i += block;
    }

    while (i < count && isfinite(numbers[i]))
        i++;
    return i;
}
