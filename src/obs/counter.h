/* SPDX-License-Identifier: Apache-2.0 */
/* counter.h: a number that only grows. Relaxed, since no counter says anything about
 * other memory. Thread-safe. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

typedef atomic_uint_fast64_t obs_counter;

static inline void obs_add(obs_counter *counter, uint64_t value) {
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

static inline uint64_t obs_get(const obs_counter *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}
