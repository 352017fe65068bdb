/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: how a pool is made. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sched_options {
    size_t num_workers; /* at least 1 */
    size_t queue_slots; /* jobs that may wait, at least 1 */
    int64_t max_delay;  /* ns of work before a job that waits */
    size_t arena_keep;  /* bytes that a worker keeps from job to job */
};
