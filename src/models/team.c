/* SPDX-License-Identifier: Apache-2.0 */
/* team.c: each thread takes the next task until none is left, or one has failed. The
 * caller waits for them, and reports each second. Every task before one that fails has
 * begun, so all of their errors are known once the threads have ended. */
#include "models/team.h"

#include "base/error.h"
#include "base/machine.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#define THREADS_MAX 8

struct team {
    const struct team_work *work;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t ended; /* num_running has changed */
    size_t next;          /* the task that begins next */
    size_t done, num_running;
    size_t failed;    /* the first task that failed; work->count: none */
    attn_error error; /* of that task */
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
    pthread_mutex_lock(&team->lock);
    team->done++;
    if (status != ATTN_OK && task < team->failed) {
        team->failed = task;
        team->error = *error;
    }
    pthread_mutex_unlock(&team->lock);
}

static void leave_team(struct team *team, size_t num_threads) {
    pthread_mutex_lock(&team->lock);
    team->num_running -= num_threads;
    pthread_cond_signal(&team->ended);
    pthread_mutex_unlock(&team->lock);
}

static void *run_tasks(void *argument) {
    struct team *team = argument;
    size_t task;

    while (take_task(team, &task)) {
        attn_error error;
        attn_status status = team->work->run(team->work->context, task, &error);
        end_task(team, task, status, &error);
    }
    leave_team(team, 1);
    return NULL;
}

/* Waits for one second or until no thread is running; returns how many are. */
static size_t wait_for_threads(struct team *team, size_t *ret_done) {
    struct timespec until;
    int waited = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&team->lock);
    while (team->num_running > 0 && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&team->ended, &team->lock, &until);
    size_t running = team->num_running;
    *ret_done = team->done;
    pthread_mutex_unlock(&team->lock);
    return running;
}

static void team_init(struct team *team, const struct team_work *work,
                      size_t num_threads) {
    pthread_condattr_t monotonic;

    *team =
        (struct team){.work = work, .num_running = num_threads, .failed = work->count};
    pthread_mutex_init(&team->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&team->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

attn_status team_run(const struct team_work *work, attn_error *ret_error) {
    size_t wanted = machine_cpus(""), num_threads = 0, done;
    pthread_t threads[THREADS_MAX];
    struct team team;

    wanted = wanted < THREADS_MAX ? wanted : THREADS_MAX;
    wanted = wanted < work->count ? wanted : work->count;
    team_init(&team, work, wanted);
    while (num_threads < wanted &&
           pthread_create(&threads[num_threads], NULL, run_tasks, &team) == 0)
        num_threads++;
    leave_team(&team, wanted - num_threads);
    while (wait_for_threads(&team, &done) > 0)
        work->report(work->context, done, work->count);

    for (size_t i = 0; i < num_threads; i++)
        pthread_join(threads[i], NULL);
    if (num_threads == 0) {
        team.num_running = 1;
        run_tasks(&team);
    }
    pthread_cond_destroy(&team.ended);
    pthread_mutex_destroy(&team.lock);
    if (team.failed == work->count)
        return ATTN_OK;
    return error_set(ret_error, team.error.status, "%s", team.error.text);
}
