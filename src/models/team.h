/* SPDX-License-Identifier: Apache-2.0 */
/* team.h: threads that share tasks, to load models with all CPUs. */
#pragma once

#include <attnd/status.h>
#include <stddef.h>

/* Tasks for team_run(). The functions get `context`. */
struct team_work {
    size_t count;
    /* Does task `i`. Several threads call it at the same time. */
    attn_status (*run)(void *context, size_t i, attn_error *ret_error);
    /* Called when a task ends, at most each second: so many of `count` are done. */
    void (*report)(void *context, size_t done, size_t count);
    void *context;
};

/* Does all tasks, on a thread for each CPU that this process may use, but no more than 8,
 * since each task may need much memory. Tasks begin in ascending order, and none begins
 * after one has failed. Returns the error of the first task, by number, that failed, as a
 * single thread would. Threads that the system refuses are done without. */
attn_status team_run(const struct team_work *work, attn_error *ret_error);
