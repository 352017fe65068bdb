/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c: parallel loops. The owner puts a loop on the pool's list, where idle workers
 * find it. All take tasks from one counter. The pool's lock guards the list, and is not
 * held while a task runs. */
#include "sched/loop.h"

#include "base/clock.h"
#include "base/pace.h"
#include "base/size.h"
#include "sched/pool_state.h"

/* One sched_parallel_for(): tasks that a job shares with idle workers. It is stored on
 * the stack of its owner, the worker that runs the job. */
struct loop {
    SLIST_ENTRY(loop) links;
    struct sched_worker *owner;
    void (*task)(void *data, size_t index, size_t thread);
    void *data;
    size_t count;
    atomic_size_t next_index; /* the next task; at least `count` when all are taken */
    /* Workers other than the owner that run tasks. It is changed under the pool's lock,
     * and the owner reads it without the lock, too. */
    atomic_size_t num_helpers;
};

/* Called while spinning: lets the other hardware thread of this core run. */
static void relax_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Runs tasks until none is left. Between two tasks the owner runs cheap jobs that wait. A
 * helper leaves when any job waits. */
static void run_loop_tasks(struct sched_worker *worker, struct loop *loop) {
    const struct sched_job *job = loop->owner->job;
    bool helps = worker != loop->owner;

    while (!helps || queue_num_jobs(&worker->pool->queue) == 0) {
        size_t index = atomic_fetch_add(&loop->next_index, 1);
        if (index >= loop->count)
            break;
        if (loop->owner->shares_loops || !sched_job_is_over(job))
            loop->task(loop->data, index, worker->index);
        if (!helps)
            sched_checkpoint(worker);
        else
            pace_restart();
    }
}

bool loop_help_locked(struct sched_worker *worker) {
    struct sched_pool *pool = worker->pool;
    struct loop *loop = SLIST_FIRST(&pool->loops);

    while (loop != NULL && atomic_load(&loop->next_index) >= loop->count)
        loop = SLIST_NEXT(loop, links);
    if (loop == NULL)
        return false;

    atomic_fetch_add(&loop->num_helpers, 1);
    pool->num_helping++;
    pthread_mutex_unlock(&pool->lock);
    int64_t begun = clock_now_ns();
    struct pace pace = {0}, *before = pace_enter(&pace);
    run_loop_tasks(worker, loop);
    pace_enter(before);
    atomic_fetch_add(&loop->owner->helped_ns, clock_now_ns() - begun);
    pthread_mutex_lock(&pool->lock);
    pool->num_helping--;
    if (atomic_fetch_sub(&loop->num_helpers, 1) == 1)
        pthread_cond_broadcast(&pool->helper_left);
    return true;
}

/* Removes a loop with no task left from the list; returns when all its tasks are done. */
static void wait_for_loop_helpers(struct sched_pool *pool, struct loop *loop) {
    pthread_mutex_lock(&pool->lock);
    SLIST_REMOVE(&pool->loops, loop, loop, links);
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
    size_t max_threads = size_min(pool->options.num_workers, count);

    if (count == 1) { /* nobody can help, and the pace finds checkpoints */
        if (worker->shares_loops || !sched_job_is_over(worker->job))
            task(data, 0, worker->index);
        return;
    }
    pthread_mutex_lock(&pool->lock);
    SLIST_INSERT_HEAD(&pool->loops, &loop, links);
    atomic_fetch_add(&pool->num_loops, 1);
    for (size_t i = 1; i < max_threads; i++)
        pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);

    run_loop_tasks(worker, &loop);
    wait_for_loop_helpers(pool, &loop);
}
