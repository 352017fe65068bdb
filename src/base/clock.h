/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: clocks that never go backwards, for durations and deadlines. */
#pragma once

#include <stdint.h>
#include <time.h>

/* Returns the nanoseconds since a fixed point in the past. Thread-safe. */
static inline int64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns the nanoseconds of CPU time that the calling thread has used. Thread-safe. */
static inline int64_t clock_thread_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Returns the earlier of two times, or the shorter of two. */
static inline int64_t clock_earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}
