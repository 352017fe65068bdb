/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h: limits the bytes that all requests together hold at one time.
 *
 * malloc() seldom fails on Linux; the OOM killer ends the process instead. So sizes are
 * reserved here before memory is allocated. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct sched_budget {
    size_t limit; /* bytes; immutable */
    atomic_size_t used;
};

static inline void sched_budget_init(struct sched_budget *budget, size_t limit) {
    budget->limit = limit;
    atomic_init(&budget->used, 0);
}

/* Reserves `bytes`. Returns false, with nothing reserved, when fewer are left.
 * Thread-safe. */
static inline bool sched_budget_reserve(struct sched_budget *budget, size_t bytes) {
    size_t used = atomic_load(&budget->used);
    do {
        if (bytes > budget->limit - used)
            return false;
    } while (!atomic_compare_exchange_weak(&budget->used, &used, used + bytes));
    return true;
}

/* Returns how many bytes are left now. Thread-safe. */
static inline size_t sched_budget_left(struct sched_budget *budget) {
    return budget->limit - atomic_load(&budget->used);
}

/* Releases `bytes` that were reserved. Thread-safe. */
static inline void sched_budget_release(struct sched_budget *budget, size_t bytes) {
    atomic_fetch_sub(&budget->used, bytes);
}
