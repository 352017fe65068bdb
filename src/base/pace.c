/* SPDX-License-Identifier: Apache-2.0 */
/* pace.c: the count of a thread, and arrays that are handled in pieces. */
#include "base/pace.h"

#include "base/size.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define PIECE_NUMBERS (PACE_PIECE / sizeof(double))
#define PIECE_BYTES   (PACE_PIECE * PACE_COPY_BYTES)

#define FINITE_BLOCK 1024 /* numbers that are checked before the loop may end */

_Thread_local struct pace *pace_of_thread;

struct pace *pace_enter(struct pace *pace) {
    struct pace *before = pace_of_thread;
    pace_of_thread = pace;
    return before;
}

void pace_restart(void) {
    struct pace *pace = pace_of_thread;
    if (pace == NULL)
        return;
    if (pace->steps > pace->longest)
        pace->longest = pace->steps;
    pace->total += pace->steps;
    pace->steps = 0;
}

void pace_reach(void) {
    struct pace *pace = pace_of_thread;
    if (pace->checkpoint == NULL)
        return;
    pace_restart();
    pace->checkpoint(pace->context);
}

/* Checks without a branch for each number. */
static bool all_finite(const float *numbers, size_t count) {
    bool finite = true;
    for (size_t i = 0; i < count; i++)
        finite &= isfinite(numbers[i]) != 0;
    return finite;
}

size_t pace_finite_end(const float *numbers, size_t count) {
    size_t i = 0;
    while (i < count) {
        size_t block = size_min(count - i, FINITE_BLOCK);
        if (!all_finite(numbers + i, block))
            break;
        i += block;
        pace_add(block);
    }

    while (i < count && isfinite(numbers[i]))
        i++;
    return i;
}

void pace_to_float(const struct dtype *dtype, const unsigned char *bytes, size_t count,
                   float *ret_values) {
    size_t size = dtype->bits / 8;
    for (size_t done = 0, piece; done < count; done += piece) {
        piece = size_min(count - done, PIECE_NUMBERS);
        dtype->to_float(bytes + done * size, piece, ret_values + done);
        pace_add(piece * sizeof *ret_values);
    }
}

void pace_copy(void *to, const void *from, size_t bytes) {
    for (size_t done = 0, piece; done < bytes; done += piece) {
        piece = size_min(bytes - done, PIECE_BYTES);
        memcpy((char *)to + done, (const char *)from + done, piece);
        pace_add(piece / PACE_COPY_BYTES);
    }
}

void pace_clear(void *to, size_t bytes) {
    for (size_t done = 0, piece; done < bytes; done += piece) {
        piece = size_min(bytes - done, PIECE_BYTES);
        memset((char *)to + done, 0, piece);
        pace_add(piece / PACE_COPY_BYTES);
    }
}
