/* SPDX-License-Identifier: Apache-2.0 */
/* budget.h: how many bytes all requests together may hold at one time.
 *
 * Malloc seldom fails on Linux: what is too much ends in the kernel's killer. So sizes
 * are reserved here before memory is asked for. */
#ifndef ATTND_SCHED_BUDGET_H
#define ATTND_SCHED_BUDGET_H

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

/* Takes `bytes`; false, with nothing taken, when fewer are left. Thread-safe. */
static inline bool sched_budget_reserve(struct sched_budget *budget, size_t bytes) {
    size_t used = atomic_load(&budget->used);
    do {
        if (bytes > budget->limit - used)
            return false;
    } while (!atomic_compare_exchange_weak(&budget->used, &used, used + bytes));
    return true;
}

/* Gives `bytes` back. Thread-safe. */
static inline void sched_budget_release(struct sched_budget *budget, size_t bytes) {
    atomic_fetch_sub(&budget->used, bytes);
}

#endif
