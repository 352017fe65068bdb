/* SPDX-License-Identifier: Apache-2.0 */
/* requests.h: how many requests there were, by route and status. Thread-safe. */
#ifndef ATTND_MODELS_REQUESTS_H
#define ATTND_MODELS_REQUESTS_H

#include "obs/counter.h"

#include <stddef.h>

#define REQUEST_ROUTES_MAX   40
#define REQUEST_STATUSES_MAX 24
/* What counts as the status of a request that got no reply; it is never sent. */
#define REQUEST_NO_REPLY 499

/* Zeroed, there were none. */
struct request_counts {
    /* By position of the route; the last are of no route. */
    obs_counter counts[REQUEST_ROUTES_MAX + 1][REQUEST_STATUSES_MAX];
};

/* Counts a request; `route` is REQUEST_ROUTES_MAX when it has none. */
void request_counts_add(struct request_counts *counts, size_t route, int status);

/* What several have counted together. */
struct request_sums {
    uint64_t counts[REQUEST_ROUTES_MAX + 1][REQUEST_STATUSES_MAX];
};

void request_sums_add(struct request_sums *sums, const struct request_counts *counts);

/* Returns the status at an index; 0 past the last. */
int request_status_at(size_t index);

#endif
