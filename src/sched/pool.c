/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: bounded queue of jobs, many producers, many workers.
 *
 * A place is reserved before a connection is suspended and used after, so that submitting
 * cannot fail (docs/threads.md). `lock` guards everything below it in struct sched_pool.
 * Nothing is called with it held; a worker holds no other lock while it waits. */
#include "sched/pool.h"

#include <pthread.h>
#include <stdlib.h>

struct sched_pool {
    struct sched_options options; /* immutable */
    pthread_t *threads;           /* [num_workers]; only the owner of the pool uses it */
    struct sched_worker *workers; /* [num_workers]; each its own thread's */
    size_t num_started;

    pthread_mutex_t lock;
    pthread_cond_t work;     /* a job was queued, or `stopping` was set */
    pthread_cond_t started;  /* num_ready has grown */
    struct sched_job *first; /* the queue, oldest first */
    struct sched_job **tail; /* where the next job is linked in */
    size_t num_places;       /* reserved or queued */
    size_t num_ready;        /* workers that have run on_start */
    size_t num_at_start;     /* workers that are about to run it */
    bool stopping;
};

/* Returns the oldest job, or NULL when the queue is empty for good. */
static struct sched_job *take(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    while (pool->first == NULL && !pool->stopping)
        pthread_cond_wait(&pool->work, &pool->lock);
    struct sched_job *job = pool->first;
    if (job != NULL) {
        pool->first = job->next;
        if (pool->first == NULL)
            pool->tail = &pool->first;
        pool->num_places--;
    }
    pthread_mutex_unlock(&pool->lock);
    return job;
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

/* A worker's thread needs its pool too. */
struct worker_start {
    struct sched_pool *pool;
    struct sched_worker *worker;
};

static void *worker_main(void *argument) {
    struct worker_start start = *(struct worker_start *)argument;
    free(argument);
    start_together(start.pool);
    struct sched_job *job;
    while ((job = take(start.pool)) != NULL) {
        job->run(job, start.worker);
        arena_reset(&start.worker->arena);
    }
    return NULL;
}

static bool start_worker(struct sched_pool *pool, size_t index) {
    struct worker_start *start = malloc(sizeof *start);
    if (start == NULL)
        return false;
    pool->workers[index].index = index;
    arena_init(&pool->workers[index].arena, pool->options.arena_keep);
    *start = (struct worker_start){pool, &pool->workers[index]};
    if (pthread_create(&pool->threads[index], NULL, worker_main, start) != 0) {
        free(start);
        return false;
    }
    pool->num_started++;
    return true;
}

attnd_status sched_pool_create(const struct sched_options *options,
                               struct sched_pool **ret_pool) {
    struct sched_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return ATTND_E_NOMEM;
    pool->options = *options;
    pool->tail = &pool->first;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->started, NULL);
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
    return ATTND_OK;
fail:
    sched_pool_destroy(pool);
    return ATTND_E_NOMEM;
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
    pthread_cond_destroy(&pool->started);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

bool sched_reserve(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    bool free_place = pool->num_places < pool->options.queue_slots;
    if (free_place)
        pool->num_places++;
    pthread_mutex_unlock(&pool->lock);
    return free_place;
}

void sched_release(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->num_places--;
    pthread_mutex_unlock(&pool->lock);
}

void sched_submit(struct sched_pool *pool, struct sched_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&pool->lock);
    *pool->tail = job;
    pool->tail = &job->next;
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}
