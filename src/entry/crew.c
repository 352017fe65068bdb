/* SPDX-License-Identifier: Apache-2.0 */
/* crew.c: threads that help with the loops of calls. A caller works on its own loop, and
 * helpers take tasks of the newest one that has some left.
 *
 * Only the thread that forks lives on in a child. So a crew has the id of its process,
 * and a child makes a crew of its own; it leaves the former one alone, whose lock may be
 * held for ever, until the pool is destroyed. */
#include "entry/crew.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/machine.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

#define THREADS_MAX 1024

/* One parallel for loop, in the stack of its caller. */
struct crew_loop {
    SLIST_ENTRY(crew_loop) links; /* guarded by the lock, as num_helpers is */
    size_t num_helpers;           /* helpers inside */
    const struct crew_limit *limit;
    void (*task)(void *data, size_t index, size_t thread);
    void *data;
    size_t count;
    atomic_size_t next_index;
};

struct crew {
    pid_t process;
    struct crew *before;  /* that of the process that forked, or NULL */
    size_t num_threads;   /* with the calling one */
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t work, helper_left;
    SLIST_HEAD(, crew_loop) loops; /* newest first */
    bool stopping;
    size_t num_started;
    struct crew_helper {
        struct crew *crew;
        size_t number; /* of the thread, in loops; the caller is 0 */
        pthread_t thread;
    } helpers[]; /* [num_threads - 1] */
};

struct attn_pool {
    size_t num_threads;
    _Atomic(struct crew *) crew; /* NULL: none was started */
};

bool crew_limit_is_over(const struct crew_limit *limit) {
    return (limit->stop != NULL && __atomic_load_n(limit->stop, __ATOMIC_RELAXED) != 0) ||
           (limit->deadline != 0 && clock_now_ns() >= limit->deadline);
}

/* --- loops --- */

static void take_tasks(struct crew_loop *loop, size_t thread) {
    size_t index;

    while ((index = atomic_fetch_add(&loop->next_index, 1)) < loop->count) {
        if (!crew_limit_is_over(loop->limit))
            loop->task(loop->data, index, thread);
    }
}

static struct crew_loop *find_loop_locked(const struct crew *crew) {
    struct crew_loop *loop;

    SLIST_FOREACH(loop, &crew->loops, links) {
        if (atomic_load(&loop->next_index) < loop->count)
            break;
    }
    return loop;
}

static void *help(void *argument) {
    const struct crew_helper *helper = argument;
    struct crew *crew = helper->crew;

    pthread_mutex_lock(&crew->lock);
    while (!crew->stopping) {
        struct crew_loop *loop = find_loop_locked(crew);
        if (loop == NULL) {
            pthread_cond_wait(&crew->work, &crew->lock);
            continue;
        }
        loop->num_helpers++;
        pthread_mutex_unlock(&crew->lock);
        take_tasks(loop, helper->number);
        pthread_mutex_lock(&crew->lock);
        loop->num_helpers--;
        pthread_cond_broadcast(&crew->helper_left);
    }
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* attn_parallel.run */
static void share_loop(void *context, size_t count,
                       void (*task)(void *data, size_t index, size_t thread),
                       void *data) {
    const struct crew_call *call = context;
    struct crew *crew = call->crew;
    struct crew_loop loop = {
        .limit = &call->limit, .task = task, .data = data, .count = count};
    bool shared = crew->num_threads > 1 && count > 1;

    atomic_init(&loop.next_index, 0);
    if (shared) {
        pthread_mutex_lock(&crew->lock);
        SLIST_INSERT_HEAD(&crew->loops, &loop, links);
        pthread_cond_broadcast(&crew->work);
        pthread_mutex_unlock(&crew->lock);
    }
    take_tasks(&loop, 0);
    if (!shared)
        return;

    pthread_mutex_lock(&crew->lock);
    SLIST_REMOVE(&crew->loops, &loop, crew_loop, links);
    while (loop.num_helpers > 0)
        pthread_cond_wait(&crew->helper_left, &crew->lock);
    pthread_mutex_unlock(&crew->lock);
}

attn_parallel crew_parallel(struct crew_call *call) {
    return (attn_parallel){call->crew->num_threads, share_loop, call};
}

/* --- threads --- */

/* Ends the threads of this process, and frees the crews of those before. */
static void destroy_crew(struct crew *crew) {
    while (crew != NULL) {
        struct crew *before = crew->before;
        if (crew->process == getpid()) {
            pthread_mutex_lock(&crew->lock);
            crew->stopping = true;
            pthread_cond_broadcast(&crew->work);
            pthread_mutex_unlock(&crew->lock);
            for (size_t i = 0; i < crew->num_started; i++)
                pthread_join(crew->helpers[i].thread, NULL);
            pthread_cond_destroy(&crew->helper_left);
            pthread_cond_destroy(&crew->work);
            pthread_mutex_destroy(&crew->lock);
        }
        free(crew);
        crew = before;
    }
}

/* Starts the helpers. Signals are for the threads of the program. */
static bool start_helpers(struct crew *crew) {
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (crew->num_started + 1 < crew->num_threads) {
        struct crew_helper *helper = &crew->helpers[crew->num_started];
        *helper = (struct crew_helper){.crew = crew, .number = crew->num_started + 1};
        if (pthread_create(&helper->thread, NULL, help, helper) != 0)
            break;
        crew->num_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return crew->num_started + 1 == crew->num_threads;
}

static struct crew *create_crew(size_t num_threads) {
    struct crew *crew =
        calloc(1, sizeof *crew + (num_threads - 1) * sizeof crew->helpers[0]);
    if (crew == NULL)
        return NULL;

    crew->process = getpid();
    crew->num_threads = num_threads;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->work, NULL);
    pthread_cond_init(&crew->helper_left, NULL);
    if (start_helpers(crew))
        return crew;
    destroy_crew(crew);
    return NULL;
}

attn_status crew_get(attn_pool *pool, struct crew **ret_crew, attn_error *ret_error) {
    struct crew *crew = atomic_load(&pool->crew);

    if (crew == NULL || crew->process != getpid()) {
        struct crew *made = create_crew(pool->num_threads);
        if (made == NULL)
            return error_set(ret_error, ATTN_E_NOMEM,
                             "cannot start %zu threads; use fewer, or allow more "
                             "(ulimit -u)",
                             pool->num_threads - 1);
        made->before = crew;
        if (atomic_compare_exchange_strong(&pool->crew, &crew, made)) {
            crew = made;
        } else { /* another thread was first */
            made->before = NULL;
            destroy_crew(made);
        }
    }
    *ret_crew = crew;
    return ATTN_OK;
}

attn_status attn_pool_create(size_t num_threads, attn_pool **ret_pool,
                             attn_error *ret_error) {
    if (num_threads > THREADS_MAX)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%zu threads are more than %d; use fewer, or 0 for one on each "
                         "CPU",
                         num_threads, THREADS_MAX);
    attn_pool *pool = malloc(sizeof *pool);
    if (pool == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    size_t cpus = num_threads > 0 ? num_threads : machine_cpus("");
    pool->num_threads = cpus < THREADS_MAX ? cpus : THREADS_MAX;
    atomic_init(&pool->crew, NULL);
    *ret_pool = pool;
    return ATTN_OK;
}

void attn_pool_destroy(attn_pool *pool) {
    if (pool == NULL)
        return;
    destroy_crew(atomic_load(&pool->crew));
    free(pool);
}
