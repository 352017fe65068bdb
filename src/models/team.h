/* SPDX-License-Identifier: Apache-2.0 */
/* team.h: threads that share tasks, to load models with all CPUs. */
#ifndef ATTND_CLI_TEAM_H
#define ATTND_CLI_TEAM_H

#include <attnd/status.h>
#include <stddef.h>

/* What team_run() does. The functions get `context`. */
struct team_work {
    size_t count;
    /* Does task `i`. Several threads call it at the same time. */
    attn_status (*run)(void *context, size_t i, attn_error *ret_error);
    /* Called each second by the thread of team_run(): `done` tasks are done. */
    void (*report)(void *context, size_t done);
    void *context;
};

/* Does all tasks, on a thread for each CPU that this process may use, but few at most,
 * since each task may need much memory. Tasks begin in ascending order, and none begins
 * after one has failed. Returns the error of the first task, by number, that failed: that
 * of a single thread. Threads that the system refuses are done without. */
attn_status team_run(const struct team_work *work, attn_error *ret_error);

#endif
