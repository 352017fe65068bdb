/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the workers, the slots of the queue, and the loops that workers share.
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
#define SPIN_NS         20000
#define RETRY_AFTER_MAX 3600 /* seconds */
/* How long a worker keeps its arena while it has nothing to do. */
#define KEEP_SECONDS 5

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
    struct sched_worker *workers; /* [num_workers]; each used by its own thread */
    struct sched_worker *inners;  /* [num_workers]: workers[i].inner */
    size_t num_started;

    pthread_mutex_t lock;
    pthread_cond_t work;        /* a job was queued, or `stopping` was set */
    pthread_cond_t started;     /* num_at_start or num_ready has grown */
    pthread_cond_t helper_left; /* the last helper has left a loop */
    struct loop *loops;         /* those that may have tasks left */
    struct queue queue;
    size_t num_slots;    /* reserved or queued */
    size_t num_running;  /* outer workers that have a job */
    size_t num_ready;    /* workers that are past on_start */
    size_t num_at_start; /* workers that have reached on_start */
    bool stopping;

    /* Changed under the lock. Spinning threads and helpers read them without it. */
    atomic_size_t num_queued; /* jobs in the queue */
    atomic_size_t num_cheap;  /* those of them that are cheap */
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

bool sched_job_is_over(const struct sched_job *job) {
    return atomic_load_explicit(&job->cancelled, memory_order_relaxed) ||
           (job->deadline != 0 && clock_now_ns() > job->deadline);
}

/* Runs tasks until none is left. Between two tasks the owner runs cheap jobs that wait. A
 * helper leaves when any job waits. */
static void run_loop_tasks(struct sched_worker *worker, struct loop *loop) {
    const struct sched_job *job = loop->owner->job;
    bool helps = worker != loop->owner;

    while (!helps || atomic_load(&worker->pool->num_queued) == 0) {
        size_t index = atomic_fetch_add(&loop->next_index, 1);
        if (index >= loop->count)
            break;
        if (!sched_job_is_over(job))
            loop->task(loop->data, index, worker->index);
        if (!helps)
            sched_checkpoint(worker);
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
static void help_loop_locked(struct sched_worker *worker, struct loop *loop) {
    struct sched_pool *pool = worker->pool;

    atomic_fetch_add(&loop->num_helpers, 1);
    pthread_mutex_unlock(&pool->lock);
    int64_t begun = clock_now_ns();
    run_loop_tasks(worker, loop);
    atomic_fetch_add(&loop->owner->helped_ns, clock_now_ns() - begun);
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
    arena_deinit(&worker->inner->arena);
    heap_trim(0);
    pthread_mutex_lock(&pool->lock);
    *keeps = false;
}

/* Called after each change of the queue. */
static void publish_counts_locked(struct sched_pool *pool) {
    const size_t *num_jobs = pool->queue.num_jobs;
    atomic_store(&pool->num_cheap, num_jobs[SCHED_CHEAP]);
    atomic_store(&pool->num_queued, num_jobs[SCHED_CHEAP] + num_jobs[SCHED_LARGE]);
}

/* Notes that a worker begins the job that it took from the queue. */
static void begin_job_locked(struct sched_worker *worker, struct sched_job *job) {
    struct sched_pool *pool = worker->pool;

    worker->job = job;
    worker->begun = clock_now_ns();
    worker->expected_end = worker->begun + job->cost;
    worker->tag = job->tag;
    worker->inner_ns = 0;
    atomic_store(&worker->helped_ns, 0);

    pool->num_slots -= job->has_slot;
    pool->num_running += worker->inner != NULL;
    publish_counts_locked(pool);
}

/* Notes that the worker's job has ended, unless that was noted already. */
static void end_job_locked(struct sched_worker *worker) {
    if (worker->job == NULL)
        return;
    worker->pool->num_running -= worker->inner != NULL;
    worker->job = NULL;
    worker->expected_end = 0;
}

/* Runs the job that the worker has begun. */
static void run_job(struct sched_worker *worker) {
    worker->job->run(worker->job, worker);
    arena_reset(&worker->arena);
}

/* Ends the worker's last job and begins the next one; returns false when the queue is
 * empty and the pool is stopping. While no job waits, helps with loops of other
 * workers. */
static bool begin_next_job(struct sched_worker *worker) {
    struct sched_pool *pool = worker->pool;
    struct sched_job *job;
    struct loop *loop;
    bool keeps = true;
    bool may_spin = pool->options.num_workers > 1;

    pthread_mutex_lock(&pool->lock);
    end_job_locked(worker);
    while ((job = queue_take(&pool->queue)) == NULL && !pool->stopping) {
        if ((loop = find_loop_locked(pool)) != NULL) {
            help_loop_locked(worker, loop);
            may_spin = true;
        } else if (may_spin) {
            spin_locked(pool);
            may_spin = false;
        } else {
            sleep_locked(pool, worker, &keeps);
        }
    }

    if (job != NULL)
        begin_job_locked(worker, job);
    pthread_mutex_unlock(&pool->lock);
    return job != NULL;
}

/* --- what a job calls on its worker --- */

int64_t sched_used_ns(const struct sched_worker *worker) {
    return clock_now_ns() - worker->begun - worker->inner_ns;
}

int64_t sched_helped_ns(const struct sched_worker *worker) {
    return atomic_load(&worker->helped_ns);
}

/* Begins a cheap job on the inner worker when it is its turn. Inner jobs get half of the
 * time of the outer one at most, so that no number of them can hold it up for long. */
static bool begin_inner_job(struct sched_worker *worker) {
    struct sched_pool *pool = worker->pool;
    struct sched_job *job;

    if (atomic_load(&pool->num_cheap) == 0)
        return false;
    int64_t used = sched_used_ns(worker);
    if (worker->inner_ns > used + SCHED_CHEAP_NS)
        return false;
    pthread_mutex_lock(&pool->lock);
    job = queue_take_cheap(&pool->queue, worker->tag + used);
    if (job != NULL)
        begin_job_locked(worker->inner, job);
    pthread_mutex_unlock(&pool->lock);
    return job != NULL;
}

void sched_checkpoint(struct sched_worker *worker) {
    struct sched_worker *inner = worker->inner;

    while (inner != NULL && begin_inner_job(worker)) {
        run_job(inner);

        int64_t took = clock_now_ns() - inner->begun;
        pthread_mutex_lock(&worker->pool->lock);
        end_job_locked(inner);
        worker->inner_ns += took;
        worker->expected_end += took;
        pthread_mutex_unlock(&worker->pool->lock);
    }
}

void sched_end_job(struct sched_worker *worker) {
    pthread_mutex_lock(&worker->pool->lock);
    end_job_locked(worker);
    pthread_mutex_unlock(&worker->pool->lock);
}

bool sched_any_waits(const struct sched_worker *worker) {
    return atomic_load(&worker->pool->num_queued) > 0;
}

void sched_go_on(struct sched_worker *worker, int64_t cost) {
    struct sched_pool *pool = worker->pool;
    int64_t now = clock_now_ns();

    pthread_mutex_lock(&pool->lock);
    worker->tag = queue_charge(&pool->queue, worker->job->client, cost);
    worker->expected_end = now + cost;
    pthread_mutex_unlock(&pool->lock);
}

/* --- parallel loops --- */

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
    struct loop loop = {.owner = worker, .task = task, .data = data, .count = count};
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

    run_loop_tasks(worker, &loop);
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

    start_workers_together(worker->pool);
    while (begin_next_job(worker))
        run_job(worker);
    return NULL;
}

static bool start_worker(struct sched_pool *pool, size_t index) {
    struct sched_worker *worker = &pool->workers[index], *inner = &pool->inners[index];

    *worker = (struct sched_worker){.pool = pool, .index = index, .inner = inner};
    *inner = (struct sched_worker){.pool = pool, .index = index};
    arena_init(&worker->arena, pool->options.arena_keep);
    arena_init(&inner->arena, pool->options.arena_keep);
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
    queue_init(&pool->queue);
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
    pool->inners = calloc(options->num_workers, sizeof *pool->inners);
    if (pool->threads == NULL || pool->workers == NULL || pool->inners == NULL)
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
        arena_deinit(&pool->inners[i].arena);
    }

    pthread_cond_destroy(&pool->helper_left);
    pthread_cond_destroy(&pool->started);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->inners);
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

/* --- submitting --- */

/* Returns the time in ns that the jobs that run still need. */
static int64_t find_running_locked(const struct sched_pool *pool) {
    int64_t now = clock_now_ns(), sum = 0;
    for (size_t i = 0; i < pool->options.num_workers; i++) {
        if (pool->workers[i].expected_end > now)
            sum += pool->workers[i].expected_end - now;
    }
    return sum;
}

/* Whether the work before a job is done within max_delay. Cheap jobs do not wait for the
 * end of those that run. */
static bool is_soon_locked(const struct sched_pool *pool, const struct sched_job *job) {
    int64_t work = queue_work_before(&pool->queue, job);
    if (job->cost + job->later > SCHED_CHEAP_NS)
        work += find_running_locked(pool);
    return work / (int64_t)pool->options.num_workers <= pool->options.max_delay;
}

bool sched_reserve(struct sched_pool *pool, const struct sched_job *job) {
    pthread_mutex_lock(&pool->lock);
    bool idle = pool->num_running + pool->num_slots < pool->options.num_workers;
    bool admitted = idle || (pool->num_slots < pool->options.queue_slots &&
                             is_soon_locked(pool, job));
    pool->num_slots += admitted;
    pthread_mutex_unlock(&pool->lock);
    return admitted;
}

void sched_release(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->num_slots--;
    pthread_mutex_unlock(&pool->lock);
}

static void add_job(struct sched_pool *pool, struct sched_job *job, bool has_slot) {
    job->has_slot = has_slot;

    pthread_mutex_lock(&pool->lock);
    if (pool->num_running == 0 && atomic_load(&pool->num_queued) == 0)
        queue_forget_shares(&pool->queue);
    queue_add(&pool->queue, job);
    publish_counts_locked(pool);
    pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

void sched_submit(struct sched_pool *pool, struct sched_job *job) {
    add_job(pool, job, true);
}

void sched_resubmit(struct sched_pool *pool, struct sched_job *job) {
    add_job(pool, job, false);
}

bool sched_cancel(struct sched_pool *pool, struct sched_job *job) {
    atomic_store(&job->cancelled, true);
    pthread_mutex_lock(&pool->lock);
    bool waits = job->waits;
    if (waits) {
        queue_remove(&pool->queue, job);
        pool->num_slots -= job->has_slot;
        publish_counts_locked(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    return waits;
}

unsigned sched_retry_after(struct sched_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    int64_t work = queue_work(&pool->queue) + find_running_locked(pool);
    pthread_mutex_unlock(&pool->lock);

    int64_t seconds = work / (int64_t)pool->options.num_workers / 1000000000 + 1;
    return seconds < RETRY_AFTER_MAX ? (unsigned)seconds : RETRY_AFTER_MAX;
}
