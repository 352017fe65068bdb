/* SPDX-License-Identifier: Apache-2.0 */
/* counter.h: numbers that only grow. Relaxed, since no counter says anything about
 * other memory. Thread-safe. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef atomic_uint_fast64_t obs_counter;

static inline void obs_add(obs_counter *counter, uint64_t value) {
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static inline uint64_t obs_get(const obs_counter *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* When files of one kind were last read again, in microseconds since 1970, or 0: in vain,
 * and with success. */
struct obs_reloads {
    obs_counter ended[2];
};

static inline void obs_count_reload(struct obs_reloads *reloads, bool done) {
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    atomic_store_explicit(&reloads->ended[done],
                          (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000,
                          memory_order_relaxed);
}
