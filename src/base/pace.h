/* SPDX-License-Identifier: Apache-2.0 */
/* pace.h: cuts the work on a large request into short pieces. Every loop whose length a
 * request decides counts its steps here, and a checkpoint is called between two pieces: a
 * worker looks there for small jobs that wait.
 *
 * A step takes about 1 ns: a byte of text, a number, a key that is compared, a pair that
 * is masked. What is vectorised counts less, and what is slow counts more. Between two
 * checkpoints lie at most PACE_STEPS_MAX.
 *
 * There is one count for each thread, so that it need not be passed to every loop. A
 * checkpoint may run other requests on the same thread. These have arenas and a pace of
 * their own, and do not touch what the thread was doing. */
#pragma once

#include "base/dtype.h"

#include <stddef.h>

/* A checkpoint comes when so many steps were counted. A loop counts at most PACE_PIECE at
 * a time, so PACE_STEPS_MAX leaves room for what cannot be cut. */
#define PACE_STEPS     ((size_t)512 * 1024)
#define PACE_PIECE     ((size_t)256 * 1024)
#define PACE_STEPS_MAX ((size_t)2048 * 1024)

/* Bytes that are copied or cleared in one step. */
#define PACE_COPY_BYTES 8

/* Belongs to one thread. The numbers begin as 0. */
struct pace {
    void (*checkpoint)(void *context); /* NULL: none can be called */
    void *context;
    size_t steps;   /* since the last checkpoint */
    size_t longest; /* the most between two, without those in `steps`; for tests */
    size_t total;   /* before the last checkpoint; for tests */
};

/* The pace of the calling thread; NULL: nothing is counted. */
extern _Thread_local struct pace *pace_of_thread;

/* Makes `pace`, which may be NULL, the pace of the calling thread. Returns the one
 * before, which the caller restores. */
struct pace *pace_enter(struct pace *pace);

/* Counts from 0 again, because a checkpoint was reached in another way. */
void pace_restart(void);

/* Calls the checkpoint, if there is one. */
void pace_reach(void);

/* Counts steps that were taken. */
static inline void pace_add(size_t steps) {
    struct pace *pace = pace_of_thread;
    if (pace == NULL)
        return;
    pace->steps += steps;
    if (pace->steps >= PACE_STEPS)
        pace_reach();
}

/* Returns the index of the first number that is infinite or NaN, or `count` when all are
 * finite. It runs at the speed of memory. Thread-safe. */
size_t pace_finite_end(const float *numbers, size_t count);

/* dtype.to_float(), memcpy() and memset() to 0, in pieces. */
void pace_to_float(const struct dtype *dtype, const unsigned char *bytes, size_t count,
                   float *ret_values);
void pace_copy(void *to, const void *from, size_t bytes);
void pace_clear(void *to, size_t bytes);
