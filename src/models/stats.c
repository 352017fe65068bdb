/* SPDX-License-Identifier: Apache-2.0 */
/* stats.c: the list of statuses, and what requests for inference took. */
#include "models/stats.h"

#include <time.h>

#define STATUS_OK 200

/* All that a reply can have, ascending. Another counts as the one before it. */
/* clang-format off */
static const short statuses[] = {
    200, 201, 204, 304, 400, 401, 403, 404, 405, 406, 408, 409, 411, 413, 415, 417, 422,
    429, REQUEST_NO_REPLY, 500, 503, 504, 507};
/* clang-format on */

#define NUM_STATUSES (sizeof statuses / sizeof statuses[0])
_Static_assert(NUM_STATUSES <= REQUEST_STATUSES_MAX, "REQUEST_STATUSES_MAX is too small");

void request_counts_add(struct request_counts *counts, size_t route, int status) {
    size_t i = 0;
    while (i + 1 < NUM_STATUSES && statuses[i + 1] <= status)
        i++;
    obs_add(&counts->counts[route][i], 1);
}

void request_counts_sum(const struct request_counts *counts,
                        struct request_counts *total) {
    for (size_t route = 0; route <= REQUEST_ROUTES_MAX; route++) {
        for (size_t i = 0; i < NUM_STATUSES; i++)
            obs_add(&total->counts[route][i], obs_get(&counts->counts[route][i]));
    }
}

int request_status_at(size_t index) {
    return index < NUM_STATUSES ? statuses[index] : 0;
}

static uint64_t read_ms_since_1970(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void add_ns(struct model_stats *stats, enum wire_oip_time time, int64_t ns) {
    obs_add(&stats->inference.ns[time], ns > 0 ? (uint64_t)ns : 0);
}

void model_stats_count(struct model_stats *stats, const struct request_facts *facts,
                       int status) {
    struct wire_oip_statistics *inference = &stats->inference;
    int64_t total =
        facts->queue_ns + facts->decode_ns + facts->compute_ns + facts->encode_ns;

    request_counts_add(&stats->requests, facts->route, status);
    if (!facts->infers)
        return;
    if (status != STATUS_OK) {
        obs_add(&inference->num_failures, 1);
        add_ns(stats, WIRE_TIME_FAIL, total);
        return;
    }

    obs_add(&inference->num_successes, 1);
    add_ns(stats, WIRE_TIME_SUCCESS, total);
    add_ns(stats, WIRE_TIME_QUEUE, facts->queue_ns);
    add_ns(stats, WIRE_TIME_INPUT, facts->decode_ns);
    add_ns(stats, WIRE_TIME_INFER, facts->compute_ns);
    add_ns(stats, WIRE_TIME_OUTPUT, facts->encode_ns);
    atomic_store_explicit(&inference->last, read_ms_since_1970(), memory_order_relaxed);
}

void model_stats_execute(struct model_stats *stats, size_t num_requests,
                         const struct model_run *took) {
    struct wire_oip_batches *batches = &stats->inference.batches[num_requests - 1];

    obs_add(&batches->input_ns, (uint64_t)took->decode);
    obs_add(&batches->infer_ns, (uint64_t)took->compute);
    obs_add(&batches->output_ns, (uint64_t)took->encode);
    obs_add(&batches->count, 1);
}
