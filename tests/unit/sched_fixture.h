/* SPDX-License-Identifier: Apache-2.0 */
/* sched_fixture.h: what the tests of pools share: a client, jobs that are counted, and a
 * job that holds its worker. */
#ifndef ATTND_TESTS_SCHED_FIXTURE_H
#define ATTND_TESTS_SCHED_FIXTURE_H

#include "sched/loop.h"
#include "sched/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static struct sched_client client;
static atomic_size_t num_runs;
static atomic_bool holds, may_go_on;

static inline void wait_for(atomic_bool *flag) {
    while (!atomic_load(flag))
        usleep(100);
}

static inline void count_run(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    assert_non_null(arena_alloc(&worker->arena, 1000, 1));
    atomic_fetch_add(&num_runs, 1);
}

/* Holds its worker until release_and_destroy(). */
static inline void hold_worker(struct sched_job *job, struct sched_worker *worker) {
    atomic_store(&holds, true);
    wait_for(&may_go_on);
    count_run(job, worker);
}

static inline struct sched_pool *create_pool(const struct sched_options *options) {
    struct sched_pool *pool;

    client = (struct sched_client){0};
    atomic_store(&num_runs, 0);
    atomic_store(&holds, false);
    atomic_store(&may_go_on, false);
    assert_int_equal(sched_pool_create(options, &pool), ATTN_OK);
    return pool;
}

/* A pool whose only worker is held by `running`, a job of `client`. */
static inline struct sched_pool *create_held_pool(const struct sched_options *options,
                                                  struct sched_job *running) {
    struct sched_pool *pool = create_pool(options);

    running->run = hold_worker;
    running->client = &client;
    sched_submit(pool, running);
    wait_for(&holds);
    return pool;
}

static inline void release_and_destroy(struct sched_pool *pool) {
    atomic_store(&may_go_on, true);
    sched_pool_destroy(pool);
}

/* Reserves a slot for a job that costs nothing and is never submitted. */
static inline bool reserve(struct sched_pool *pool) {
    struct sched_job job = {.client = &client};
    return sched_reserve(pool, &job);
}

#endif
