/* SPDX-License-Identifier: Apache-2.0 */
/* refusals.h: warns of requests that were refused because of a limit.
 *
 * Any number may be refused in a second, so they are counted, and one line at most in ten
 * seconds says how many there were since the last, and why. Thread-safe. */
#ifndef ATTND_HTTP_METRICS_REFUSALS_H
#define ATTND_HTTP_METRICS_REFUSALS_H

#include "base/log.h"
#include "wire/problem.h"

#include <stdatomic.h>

/* Zeroed, there were none. */
struct refusals {
    struct log_limit limit;
    atomic_size_t unreported[WIRE_NUM_ERRORS]; /* since the last warning, by error */
};

/* Returns a word for an error that reports a limit of the server; NULL for others. */
const char *refusal_reason(enum wire_error error);

/* Counts a request, if the error is a refusal. */
void refusals_count(struct refusals *refusals, enum wire_error error);

/* Logs what is unreported, unless the last line is too young. Costs one load when there
 * is nothing. */
void refusals_warn(struct refusals *refusals);

#endif
