/* SPDX-License-Identifier: Apache-2.0 */
/* requests.c: the list of statuses. */
#include "models/requests.h"

/* All that a reply can have, ascending. Another counts as the one before it. */
/* clang-format off */
static const short statuses[] = {
    200, 204, 304, 400, 401, 403, 404, 405, 406, 408, 409, 413, 415, 417, 422, 429,
    REQUEST_NO_REPLY, 500, 503, 504};
/* clang-format on */

#define NUM_STATUSES (sizeof statuses / sizeof statuses[0])
_Static_assert(NUM_STATUSES <= REQUEST_STATUSES_MAX, "REQUEST_STATUSES_MAX is too small");

void request_counts_add(struct request_counts *counts, size_t route, int status) {
    size_t i = 0;
    while (i + 1 < NUM_STATUSES && statuses[i + 1] <= status)
        i++;
    obs_add(&counts->counts[route][i], 1);
}

void request_sums_add(struct request_sums *sums, const struct request_counts *counts) {
    for (size_t route = 0; route <= REQUEST_ROUTES_MAX; route++) {
        for (size_t i = 0; i < NUM_STATUSES; i++)
            sums->counts[route][i] += obs_get(&counts->counts[route][i]);
    }
}

int request_status_at(size_t index) {
    return index < NUM_STATUSES ? statuses[index] : 0;
}
