/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: bounded queue of jobs, many producers, many workers.
 *
 * A place is reserved before a connection is suspended and used after, so that submitting
 * cannot fail (docs/threads.md). `lock` guards everything below it in struct sched_pool.
 * Nothing is called with it held; a worker holds no other lock while it waits. */
#include "sched/pool.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* How long a thread looks for news before it sleeps. Waking a thread takes as long as
 * many a step of a request, and the next step follows at once; so an idle worker stays
 * awake from step to step. */
#define SPIN_NS 20000

/* Work that a job shares with idle workers, on the stack of its owner. */
struct share {
    struct share *next;
    void (*task)(void *data, size_t index, size_t thread);
    void *data;
    size_t count;
    atomic_size_t next_index; /* the next task; past count when all are taken */
    atomic_size_t
        num_helpers; /* changed under the pool's lock; the owner looks without */
};

struct sched_pool {
    struct sched_options options; /* immutable */
    pthread_t *threads;           /* [num_workers]; only the owner of the pool uses it */
    struct sched_worker *workers; /* [num_workers]; each its own thread's */
    size_t num_started;

    pthread_mutex_t lock;
    pthread_cond_t work;     /* a job was queued, or `stopping` was set */
    pthread_cond_t started;  /* num_ready has grown */
    pthread_cond_t helped;   /* a helper has left a share */
    struct share *shares;    /* those whose owners still work on them */
    struct sched_job *first; /* the queue, oldest first */
    struct sched_job **tail; /* where the next job is linked in */
    size_t num_slots;        /* reserved or queued */
    size_t num_ready;        /* workers that have run on_start */
    size_t num_at_start;     /* workers that are about to run it */
    bool stopping;

    /* Changed under the lock; read without it by threads that are about to look again. */
    atomic_size_t num_queued; /* jobs in the queue */
    atomic_size_t num_shares; /* shares that were ever put on the list */
};

/* One turn of a loop that waits for another thread: lets the CPU's other thread run. */
static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Does what is left of a share. Helpers leave between two tasks when a job waits. */
static void run_tasks(struct sched_pool *pool, struct share *share, size_t thread,
                      bool helps) {
    while (!helps || atomic_load(&pool->num_queued) == 0) {
        size_t index = atomic_fetch_add(&share->next_index, 1);
        if (index >= share->count)
            break;
        share->task(share->data, index, thread);
    }
}

/* Returns a share with tasks left, or NULL. */
static struct share *find_share_locked(const struct sched_pool *pool) {
    struct share *share = pool->shares;
    while (share != NULL && atomic_load(&share->next_index) >= share->count)
        share = share->next;
    return share;
}

/* Helps with a share; its owner waits for all helpers before the share goes out of being.
 */
static void help_locked(struct sched_pool *pool, struct share *share, size_t thread) {
    atomic_fetch_add(&share->num_helpers, 1);
    pthread_mutex_unlock(&pool->lock);
    run_tasks(pool, share, thread, true);
    pthread_mutex_lock(&pool->lock);
    if (atomic_fetch_sub(&share->num_helpers, 1) == 1)
        pthread_cond_broadcast(&pool->helped);
}

/* Looks for a new job or share for a while, with the lock given back meanwhile. */
static void spin_locked(struct sched_pool *pool) {
    size_t seen = atomic_load(&pool->num_shares);
    pthread_mutex_unlock(&pool->lock);
    int64_t end = clock_now_ns() + SPIN_NS;
    while (atomic_load(&pool->num_queued) == 0 &&
           atomic_load(&pool->num_shares) == seen && clock_now_ns() < end)
        relax();
    pthread_mutex_lock(&pool->lock);
}

/* Returns the oldest job, or NULL when the queue is empty for good. Helps others while
 * there is none: jobs come first. */
static struct sched_job *take(struct sched_pool *pool, size_t thread) {
    struct share *share;
    bool may_spin = pool->options.num_workers > 1;
    pthread_mutex_lock(&pool->lock);
    while (pool->first == NULL && !pool->stopping) {
        if ((share = find_share_locked(pool)) != NULL) {
            help_locked(pool, share, thread);
            may_spin = true;
        } else if (may_spin) {
            spin_locked(pool);
            may_spin = false;
        } else {
            pthread_cond_wait(&pool->work, &pool->lock);
        }
    }
    struct sched_job *job = pool->first;
    if (job != NULL) {
        pool->first = job->next;
        if (pool->first == NULL)
            pool->tail = &pool->first;
        pool->num_slots -= job->has_slot;
        atomic_fetch_sub(&pool->num_queued, 1);
    }
    pthread_mutex_unlock(&pool->lock);
    return job;
}

/* Takes a share whose tasks are all taken off the list; returns when they are done. */
static void wait_for_helpers(struct sched_pool *pool, struct share *share) {
    pthread_mutex_lock(&pool->lock);
    struct share **link = &pool->shares;
    while (*link != share)
        link = &(*link)->next;
    *link = share->next;
    pthread_mutex_unlock(&pool->lock);
    int64_t end = clock_now_ns() + SPIN_NS;
    while (atomic_load(&share->num_helpers) > 0 && clock_now_ns() < end)
        relax();
    pthread_mutex_lock(&pool->lock); /* the last helper lets go of it before we return */
    while (atomic_load(&share->num_helpers) > 0)
        pthread_cond_wait(&pool->helped, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void sched_parallel_for(struct sched_worker *worker, size_t count,
                        void (*task)(void *data, size_t index, size_t thread),
                        void *data) {
    struct sched_pool *pool = worker->pool;
    struct share share = {.task = task, .data = data, .count = count};
    atomic_init(&share.next_index, 0);
    size_t max = pool->options.num_workers < count ? pool->options.num_workers : count;
    atomic_init(&share.num_helpers, 0);
    pthread_mutex_lock(&pool->lock);
    share.next = pool->shares;
    pool->shares = &share;
    atomic_fetch_add(&pool->num_shares, 1);
    for (size_t i = 1; i < max; i++)
        pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    run_tasks(pool, &share, worker->index, false);
    wait_for_helpers(pool, &share);
}

size_t sched_num_workers(const struct sched_pool *pool) {
    return pool->options.num_workers;
}

/* Runs on_start on all workers at the same time: each waits for the others to arrive. */
static void start_together(struct sched_pool *pool) {
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
    start_together(worker->pool);
    while ((job = take(worker->pool, worker->index)) != NULL) {
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
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->started, NULL);
    pthread_cond_init(&pool->helped, NULL);
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
    pthread_cond_destroy(&pool->helped);
    pthread_cond_destroy(&pool->started);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

bool sched_reserve(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    bool free_slot = pool->num_slots < pool->options.queue_slots;
    if (free_slot)
        pool->num_slots++;
    pthread_mutex_unlock(&pool->lock);
    return free_slot;
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
