/* SPDX-License-Identifier: Apache-2.0 */
/* crew.h: the threads of an attn_pool, and how they share the tasks of a call. */
#pragma once

#include <attnd/attention.h>
#include <attnd/program.h>
#include <stdint.h>

struct crew;

/* What may end a call between two tasks. */
struct crew_limit {
    const int *stop;  /* other than 0: the caller has stopped it; or NULL */
    int64_t deadline; /* of clock_now_ns(); 0: none */
};

/* Returns whether the call is over. Thread-safe. */
bool crew_limit_is_over(const struct crew_limit *limit);

/* Returns the threads of this process, and starts them where there are none yet. They
 * belong to the pool. Thread-safe. Errors: ATTN_E_NOMEM. */
attn_status crew_get(attn_pool *pool, struct crew **ret_crew, attn_error *ret_error);

/* The context of crew_run(); it belongs to one call. */
struct crew_call {
    struct crew *crew;
    struct crew_limit limit;
};

/* Returns a loop that shares its tasks among the threads and the calling one, and leaves
 * out those that have not begun when the limit is over. Borrows `call`. */
attn_parallel crew_parallel(struct crew_call *call);
