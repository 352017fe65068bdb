/* SPDX-License-Identifier: Apache-2.0 */
/* refusals.c: the thread that moves `warned_at` writes the line. */
#include "http/metrics/refusals.h"

#include "base/clock.h"
#include "base/log.h"

#include <stdio.h>

#define WARN_AGAIN_NS 10000000000

const char *refusal_reason(enum wire_error error) {
    static const char *const reasons[WIRE_NUM_ERRORS] = {
        [WIRE_E_BODY_TOO_LARGE] = "body_too_large",
        [WIRE_E_REQUEST_TOO_LARGE] = "request_too_large",
        [WIRE_E_REPLY_TOO_LARGE] = "reply_too_large",
        [WIRE_E_TOO_MANY_REQUESTS] = "too_many_requests",
        [WIRE_E_QUEUE_FULL] = "queue_full",
        [WIRE_E_OUT_OF_MEMORY] = "out_of_memory",
    };
    return error < WIRE_NUM_ERRORS ? reasons[error] : NULL;
}

void refusals_count(struct refusals *refusals, enum wire_error error) {
    if (refusal_reason(error) == NULL)
        return;
    /* In this order: what num_unsaid promises is found. */
    atomic_fetch_add(&refusals->unsaid[error], 1);
    atomic_fetch_add(&refusals->num_unsaid, 1);
}

void refusals_warn(struct refusals *refusals) {
    if (atomic_load_explicit(&refusals->num_unsaid, memory_order_relaxed) == 0)
        return;

    int64_t now = clock_now_ns();
    int64_t last = atomic_load(&refusals->warned_at);
    if ((last != 0 && now - last < WARN_AGAIN_NS) ||
        !atomic_compare_exchange_strong(&refusals->warned_at, &last, now))
        return;

    char reasons[256] = "";
    size_t size = 0, total = 0;
    for (size_t i = 0; i < WIRE_NUM_ERRORS; i++) {
        size_t count = atomic_exchange(&refusals->unsaid[i], 0);
        if (count > 0 && size < sizeof reasons)
            size += (size_t)snprintf(reasons + size, sizeof reasons - size, "%s%s %zu",
                                     size > 0 ? ", " : "",
                                     refusal_reason((enum wire_error)i), count);
        total += count;
    }
    atomic_fetch_sub(&refusals->num_unsaid, total);
    log_write(LOG_WARN, "requests were refused", LOG_NUMBER("count", total),
              LOG_TEXT("reasons", reasons));
}
