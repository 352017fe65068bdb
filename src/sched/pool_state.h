/* SPDX-License-Identifier: Apache-2.0 */
/* pool_state.h: the state of a pool, for pool.c, loop.c and worker.c alone. */
#pragma once

#include "sched/options.h"
#include "sched/queue.h"

#include <pthread.h>
#include <sys/queue.h>

/* How long a thread polls before it sleeps. Waking a thread takes as long as a step of a
 * small request, and the next step follows at once. So an idle worker stays awake from
 * step to step. */
#define SPIN_NS 20000

struct loop;
struct sched_worker;

struct sched_pool {
    struct sched_options options; /* immutable */
    pthread_t *threads;           /* [num_workers]; used by the pool's owner alone */
    /* Level by level, each used by its own thread; the outermost come first. */
    struct sched_worker *workers; /* [SCHED_LEVELS][num_workers] */
    size_t num_started;

    pthread_mutex_t lock;
    pthread_cond_t work;        /* a job was queued, or `stopping` was set */
    pthread_cond_t helper_left; /* the last helper has left a loop */
    SLIST_HEAD(, loop) loops;   /* that may have tasks left */
    struct queue queue;
    size_t num_slots;   /* reserved or queued */
    size_t num_running; /* outer workers that have a job */
    size_t num_helping; /* outer workers that help with a loop of another */
    bool stopping;
    /* Asked for by sched_call_on_each(), or NULL. Workers whose `called` is another
     * number than call_number have yet to call. */
    void (*call)(void *context);
    void *call_context;
    size_t call_number, num_calling, num_called;
    pthread_cond_t call_ended; /* a call has returned */

    /* Loops that were ever put on the list. Threads that spin read it with no lock. */
    atomic_size_t num_loops;
};

/* Called when a job leaves the queue. */
static inline void release_slot_locked(struct sched_pool *pool, struct sched_job *job) {
    pool->num_slots -= job->has_slot;
    job->has_slot = false;
}
