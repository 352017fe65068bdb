/* SPDX-License-Identifier: Apache-2.0 */
/* pool_state.h: the state of a pool, which pool.c and loop.c share. */
#ifndef ATTND_SCHED_POOL_STATE_H
#define ATTND_SCHED_POOL_STATE_H

#include "sched/worker.h"

#include <pthread.h>

/* How long a thread polls before it sleeps. Waking a thread takes as long as a step of a
 * small request, and the next step follows at once. So an idle worker stays awake from
 * step to step. */
#define SPIN_NS 20000

/* One sched_parallel_for(): tasks that a job shares with idle workers. It is stored on
 * the stack of its owner, the worker that runs the job. */
struct loop {
    struct loop *next;
    struct sched_worker *owner;
    void (*task)(void *data, size_t index, size_t thread);
    void *data;
    size_t count;
    atomic_size_t next_index; /* the next task; at least `count` when all are taken */
    /* Workers other than the owner that run tasks. Changed under the pool's lock; the
     * owner also reads it without the lock. */
    atomic_size_t num_helpers;
};

struct sched_pool {
    struct sched_options options; /* immutable */
    pthread_t *threads;           /* [num_workers]; used by the pool's owner alone */
    /* Level by level, each used by its own thread; the outermost come first. */
    struct sched_worker *workers; /* [SCHED_LEVELS][num_workers] */
    size_t num_started;

    pthread_mutex_t lock;
    pthread_cond_t work;        /* a job was queued, or `stopping` was set */
    pthread_cond_t started;     /* num_at_start or num_ready has grown */
    pthread_cond_t helper_left; /* the last helper has left a loop */
    struct loop *loops;         /* those that may have tasks left */
    struct queue queue;
    size_t num_slots;    /* reserved or queued */
    size_t num_running;  /* outer workers that have a job */
    size_t num_helping;  /* those that help with a loop of another */
    size_t num_ready;    /* workers that are past on_start */
    size_t num_at_start; /* workers that have reached on_start */
    bool stopping;
    /* Of sched_call_on_each(): workers whose `called` is another number have yet to call.
     * NULL: none shall any more. */
    void (*call)(void *context);
    void *call_context;
    size_t call_number, num_calling, num_called;
    pthread_cond_t call_ended; /* a call has returned */

    /* Changed under the lock. Spinning threads and helpers read them without it. */
    atomic_size_t num_queued; /* jobs in the queue */
    atomic_size_t num_cheap;  /* those of them that are cheap */
    atomic_size_t num_loops;  /* loops that were ever put on the list */
    atomic_int_fast64_t time; /* of the queue, virtual */
};

/* Called while spinning: lets the other hardware thread of this core run. */
static inline void relax_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* pace.checkpoint of a worker, which is the context. */
void reach_checkpoint(void *worker);

/* Notes that a worker begins the job that it took from the queue. */
void begin_job_locked(struct sched_worker *worker, struct sched_job *job);

/* Runs the job that the worker has begun. */
void run_job(struct sched_worker *worker);

/* Notes that the worker's job has ended, unless that was noted already. */
void end_job_locked(struct sched_worker *worker);

/* Returns how long in ns the job of an outer worker must run until a large one that waits
 * may run inside it; 0 or less: no longer. The caller holds the lock. */
int64_t inner_find_wait(const struct sched_worker *worker, const struct sched_job *job);

/* Returns a loop with tasks left, or NULL. */
struct loop *find_loop_locked(const struct sched_pool *pool);

/* Runs tasks of a loop, without the lock. The owner waits for all helpers before the loop
 * goes out of scope. */
void help_loop_locked(struct sched_worker *worker, struct loop *loop);

#endif
