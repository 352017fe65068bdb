/* SPDX-License-Identifier: Apache-2.0 */
/* team.c: each thread takes the next task until none is left, or one has failed; the
 * caller is one of them. Every task before one that fails has begun, so all of their
 * errors are known once the threads have ended. */
#include "models/team.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"
#include "base/size.h"

#include <pthread.h>
#include <stdbool.h>

#define REPORT_NS   ((int64_t)1000000000)
#define THREADS_MAX 8

struct team {
    const struct team_work *work;
    pthread_mutex_t lock; /* guards what follows */
    size_t next;          /* the task that begins next */
    size_t done;
    size_t failed;       /* the first task that failed; work->count: none */
    attn_error error;    /* of that task */
    int64_t next_report; /* clock_now_ns */
};

/* Takes the next task; returns false when none may begin. */
static bool take_task(struct team *team, size_t *ret_task) {
    pthread_mutex_lock(&team->lock);
    bool more = team->failed == team->work->count && team->next < team->work->count;
    if (more)
        *ret_task = team->next++;
    pthread_mutex_unlock(&team->lock);
    return more;
}

static void end_task(struct team *team, size_t task, attn_status status,
                     const attn_error *error) {
    const struct team_work *work = team->work;

    pthread_mutex_lock(&team->lock);
    team->done++;
    if (status != ATTN_OK && task < team->failed) {
        team->failed = task;
        team->error = *error;
    }
    bool reports = clock_now_ns() >= team->next_report;
    if (reports)
        team->next_report = clock_now_ns() + REPORT_NS;
    size_t done = team->done;
    pthread_mutex_unlock(&team->lock);

    if (reports)
        work->report(work->context, done, work->count);
}

static void *run_team_tasks(void *argument) {
    struct team *team = argument;
    size_t task;

    while (take_task(team, &task)) {
        attn_error error;
        attn_status status = team->work->run(team->work->context, task, &error);
        end_task(team, task, status, &error);
    }
    return NULL;
}

attn_status team_run(const struct team_work *work, attn_error *ret_error) {
    size_t wanted = size_min(size_min(machine_cpus(""), THREADS_MAX), work->count);
    size_t num_threads = 1;
    pthread_t threads[THREADS_MAX];
    struct team team = {
        .work = work, .failed = work->count, .next_report = clock_now_ns() + REPORT_NS};

    pthread_mutex_init(&team.lock, NULL);
    while (num_threads < wanted &&
           pthread_create(&threads[num_threads], NULL, run_team_tasks, &team) == 0)
        num_threads++;
    run_team_tasks(&team);

    for (size_t i = 1; i < num_threads; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&team.lock);
    if (team.failed == work->count)
        return ATTN_OK;
    return error_set(ret_error, team.error.status, "%s", team.error.text);
}
