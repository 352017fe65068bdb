/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: a bounded queue of jobs with many producers and many workers.
 *
 * A slot is reserved before a connection is suspended, and used afterwards, so that
 * submitting cannot fail (docs/threads.md). `lock` guards everything below it in struct
 * sched_pool. No callback runs with it held; a worker holds no other lock while it
 * waits. */
#include "sched/pool.h"

#include "base/clock.h"
#include "base/heap.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

/* How long a thread polls before it sleeps. Waking a thread takes as long as a step of a
 * small request, and the next step follows at once. So an idle worker stays awake from
 * step to step. */
#define SPIN_NS 20000
/* How long a worker keeps its arena while it has nothing to do. */
#define KEEP_SECONDS 5

/* One sched_parallel_for(): tasks that a job shares with idle workers. It is stored on
 * the stack of its owner, the worker that runs the job. */
struct loop {
    struct loop *next;
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
    struct sched_worker *workers; /* [num_workers]; each used by its own thread */
    size_t num_started;

    pthread_mutex_t lock;
    pthread_cond_t work;        /* a job was queued, or `stopping` was set */
    pthread_cond_t started;     /* num_at_start or num_ready has grown */
    pthread_cond_t helper_left; /* the last helper has left a loop */
    struct loop *loops;         /* those that may have tasks left */
    struct sched_job *first;    /* the queue: resubmitted, then oldest first */
    struct sched_job **tail;    /* where the next job is linked in */
    size_t num_slots;           /* reserved or queued */
    size_t num_ready;           /* workers that are past on_start */
    size_t num_at_start;        /* workers that have reached on_start */
    bool stopping;

    /* Changed under the lock. Spinning threads and helpers read them without it. */
    atomic_size_t num_queued; /* jobs in the queue */
    atomic_size_t num_loops;  /* loops that were ever put on the list */
};

/* Called while spinning: lets the other hardware thread of this core run. */
static void relax_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Runs tasks until none is left. A helper leaves between two tasks when a job waits. */
static void run_loop_tasks(struct sched_pool *pool, struct loop *loop, size_t thread,
                           bool helps) {
    while (!helps || atomic_load(&pool->num_queued) == 0) {
        size_t index = atomic_fetch_add(&loop->next_index, 1);
        if (index >= loop->count)
            break;
        loop->task(loop->data, index, thread);
    }
}

/* Returns a loop with tasks left, or NULL. */
static struct loop *find_loop_locked(const struct sched_pool *pool) {
    struct loop *loop = pool->loops;
    while (loop != NULL && atomic_load(&loop->next_index) >= loop->count)
        loop = loop->next;
    return loop;
}

/* Runs tasks of a loop, without the lock. The owner waits for all helpers before the loop
 * goes out of scope. */
static void help_loop_locked(struct sched_pool *pool, struct loop *loop, size_t thread) {
    atomic_fetch_add(&loop->num_helpers, 1);
    pthread_mutex_unlock(&pool->lock);
    run_loop_tasks(pool, loop, thread, true);
    pthread_mutex_lock(&pool->lock);
    if (atomic_fetch_sub(&loop->num_helpers, 1) == 1)
        pthread_cond_broadcast(&pool->helper_left);
}

/* Polls for a new job or loop for SPIN_NS, with the lock released meanwhile. */
static void spin_locked(struct sched_pool *pool) {
    size_t seen = atomic_load(&pool->num_loops);
    pthread_mutex_unlock(&pool->lock);
    int64_t spin_end = clock_now_ns() + SPIN_NS;
    while (atomic_load(&pool->num_queued) == 0 && atomic_load(&pool->num_loops) == seen &&
           clock_now_ns() < spin_end)
        relax_cpu();
    pthread_mutex_lock(&pool->lock);
}

/* Sleeps until there may be work. After KEEP_SECONDS without any, releases what the
 * worker keeps; so the last one to fall idle leaves nothing behind. */
static void sleep_locked(struct sched_pool *pool, struct sched_worker *worker,
                         bool *keeps) {
    if (!*keeps) {
        pthread_cond_wait(&pool->work, &pool->lock);
        return;
    }

    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += KEEP_SECONDS;
    if (pthread_cond_timedwait(&pool->work, &pool->lock, &until) != ETIMEDOUT)
        return;

    pthread_mutex_unlock(&pool->lock);
    arena_deinit(&worker->arena);
    heap_trim(0);
    pthread_mutex_lock(&pool->lock);
    *keeps = false;
}

/* Removes the job that *link points to from the queue. */
static void unlink_job_locked(struct sched_pool *pool, struct sched_job **link) {
    struct sched_job *job = *link;
    *link = job->next;
    if (*link == NULL)
        pool->tail = link;
    pool->num_slots -= job->has_slot;
    atomic_fetch_sub(&pool->num_queued, 1);
}

/* Returns the first job of the queue, or NULL when the queue is empty and the pool is
 * stopping. While no job waits, helps with loops of other workers. */
static struct sched_job *take_job(struct sched_pool *pool, struct sched_worker *worker) {
    struct loop *loop;
    bool keeps = true;
    bool may_spin = pool->options.num_workers > 1;

    pthread_mutex_lock(&pool->lock);
    while (pool->first == NULL && !pool->stopping) {
        if ((loop = find_loop_locked(pool)) != NULL) {
            help_loop_locked(pool, loop, worker->index);
            may_spin = true;
        } else if (may_spin) {
            spin_locked(pool);
            may_spin = false;
        } else {
            sleep_locked(pool, worker, &keeps);
        }
    }

    struct sched_job *job = pool->first;
    if (job != NULL)
        unlink_job_locked(pool, &pool->first);
    pthread_mutex_unlock(&pool->lock);
    return job;
}

/* Removes a loop with no task left from the list; returns when all its tasks are done. */
static void wait_for_loop_helpers(struct sched_pool *pool, struct loop *loop) {
    pthread_mutex_lock(&pool->lock);
    struct loop **link = &pool->loops;
    while (*link != loop)
        link = &(*link)->next;
    *link = loop->next;
    pthread_mutex_unlock(&pool->lock);

    int64_t spin_end = clock_now_ns() + SPIN_NS;
    while (atomic_load(&loop->num_helpers) > 0 && clock_now_ns() < spin_end)
        relax_cpu();

    /* Even when no helper is left: the last one may not have released the lock yet. */
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&loop->num_helpers) > 0)
        pthread_cond_wait(&pool->helper_left, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void sched_parallel_for(void *context, size_t count,
                        void (*task)(void *data, size_t index, size_t thread),
                        void *data) {
    struct sched_worker *worker = context;
    struct sched_pool *pool = worker->pool;
    struct loop loop = {.task = task, .data = data, .count = count};
    size_t max_threads =
        pool->options.num_workers < count ? pool->options.num_workers : count;
    atomic_init(&loop.next_index, 0);
    atomic_init(&loop.num_helpers, 0);

    pthread_mutex_lock(&pool->lock);
    loop.next = pool->loops;
    pool->loops = &loop;
    atomic_fetch_add(&pool->num_loops, 1);
    for (size_t i = 1; i < max_threads; i++)
        pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);

    run_loop_tasks(pool, &loop, worker->index, false);
    wait_for_loop_helpers(pool, &loop);
}

size_t sched_num_workers(const struct sched_pool *pool) {
    return pool->options.num_workers;
}

/* Runs on_start on all workers at the same time: each first waits for the others. */
static void start_workers_together(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->num_at_start++;
    pthread_cond_broadcast(&pool->started);
    while (pool->num_at_start < pool->options.num_workers && !pool->stopping)
        pthread_cond_wait(&pool->started, &pool->lock);
    bool stopping = pool->stopping;
    pthread_mutex_unlock(&pool->lock);

    if (!stopping && pool->options.on_start != NULL)
        pool->options.on_start();

    pthread_mutex_lock(&pool->lock);
    pool->num_ready++;
    pthread_cond_broadcast(&pool->started);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument) {
    struct sched_worker *worker = argument;
    struct sched_job *job;

    start_workers_together(worker->pool);
    while ((job = take_job(worker->pool, worker)) != NULL) {
        job->run(job, worker);
        arena_reset(&worker->arena);
    }
    return NULL;
}

static bool start_worker(struct sched_pool *pool, size_t index) {
    struct sched_worker *worker = &pool->workers[index];
    worker->pool = pool;
    worker->index = index;
    arena_init(&worker->arena, pool->options.arena_keep);
    if (pthread_create(&pool->threads[index], NULL, worker_main, worker) != 0)
        return false;
    pool->num_started++;
    return true;
}

attn_status sched_pool_create(const struct sched_options *options,
                              struct sched_pool **ret_pool) {
    struct sched_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return ATTN_E_NOMEM;

    pool->options = *options;
    pool->tail = &pool->first;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&pool->started, NULL);
    pthread_cond_init(&pool->helper_left, NULL);
    pool->threads = calloc(options->num_workers, sizeof *pool->threads);
    pool->workers = calloc(options->num_workers, sizeof *pool->workers);
    if (pool->threads == NULL || pool->workers == NULL)
        goto fail;

    for (size_t i = 0; i < options->num_workers; i++) {
        if (!start_worker(pool, i))
            goto fail;
    }

    pthread_mutex_lock(&pool->lock);
    while (pool->num_ready < options->num_workers)
        pthread_cond_wait(&pool->started, &pool->lock);
    pthread_mutex_unlock(&pool->lock);

    *ret_pool = pool;
    return ATTN_OK;

fail:
    sched_pool_destroy(pool);
    return ATTN_E_NOMEM;
}

void sched_pool_destroy(struct sched_pool *pool) {
    if (pool == NULL)
        return;

    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->work);
    pthread_cond_broadcast(&pool->started);
    pthread_mutex_unlock(&pool->lock);

    for (size_t i = 0; i < pool->num_started; i++) {
        pthread_join(pool->threads[i], NULL);
        arena_deinit(&pool->workers[i].arena);
    }

    pthread_cond_destroy(&pool->helper_left);
    pthread_cond_destroy(&pool->started);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

bool sched_reserve(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    bool has_room = pool->num_slots < pool->options.queue_slots;
    if (has_room)
        pool->num_slots++;
    pthread_mutex_unlock(&pool->lock);
    return has_room;
}

void sched_release(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->num_slots--;
    pthread_mutex_unlock(&pool->lock);
}

void sched_submit(struct sched_pool *pool, struct sched_job *job) {
    job->next = NULL;
    job->has_slot = true;

    pthread_mutex_lock(&pool->lock);
    *pool->tail = job;
    pool->tail = &job->next;
    atomic_fetch_add(&pool->num_queued, 1);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void sched_resubmit(struct sched_pool *pool, struct sched_job *job) {
    job->has_slot = false;

    pthread_mutex_lock(&pool->lock);
    job->next = pool->first;
    if (pool->first == NULL)
        pool->tail = &job->next;
    pool->first = job;
    atomic_fetch_add(&pool->num_queued, 1);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

bool sched_cancel(struct sched_pool *pool, struct sched_job *job) {
    pthread_mutex_lock(&pool->lock);
    struct sched_job **link = &pool->first;
    while (*link != NULL && *link != job)
        link = &(*link)->next;
    bool waited = *link != NULL;
    if (waited)
        unlink_job_locked(pool, link);
    else
        atomic_store(&job->cancelled, true);
    pthread_mutex_unlock(&pool->lock);
    return waited;
}
