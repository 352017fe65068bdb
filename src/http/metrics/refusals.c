/* SPDX-License-Identifier: Apache-2.0 */
/* refusals.c: counts by reason beside the limit of their line. */
#include "http/metrics/refusals.h"

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
    /* The order matters: who finds the event must find its count. */
    atomic_fetch_add(&refusals->unreported[error], 1);
    log_limit_count(&refusals->limit);
}

void refusals_warn(struct refusals *refusals) {
    if (log_limit_take(&refusals->limit, WARN_AGAIN_NS) == 0)
        return;

    char reasons[256] = "";
    size_t size = 0, total = 0;
    for (size_t i = 0; i < WIRE_NUM_ERRORS; i++) {
        size_t count = atomic_exchange(&refusals->unreported[i], 0);
        if (count > 0 && size < sizeof reasons)
            size += (size_t)snprintf(reasons + size, sizeof reasons - size, "%s%s %zu",
                                     size > 0 ? ", " : "",
                                     refusal_reason((enum wire_error)i), count);
        total += count;
    }
    if (total > 0) /* 0: an earlier line has told of all of them */
        log_write(LOG_WARN, "requests were refused", LOG_NUMBER("count", total),
                  LOG_TEXT("reasons", reasons));
}
