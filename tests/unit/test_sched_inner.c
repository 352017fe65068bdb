/* SPDX-License-Identifier: Apache-2.0 */
/* test_sched_inner.c: tests of jobs that run inside larger ones. */
#include "sched_fixture.h"

#include "base/clock.h"

#include <sched.h>

static const struct sched_options one_worker = {
    .num_workers = 1, .queue_slots = 1, .max_delay = 100000000000};

/* Counts for the thread that calls it, in place of the one of libc. */
static _Thread_local size_t num_yields;

int sched_yield(void) {
    num_yields++;
    return 0;
}

static void look_often(struct sched_job *job, struct sched_worker *worker) {
    size_t before = num_yields;
    int64_t begun = clock_now_ns();

    for (size_t i = 0; i < 100000; i++)
        sched_checkpoint(worker);
    size_t most = (size_t)(clock_now_ns() - begun) / 2000000 + 1;
    assert_in_range(num_yields - before, 1, most);
    count_run(job, worker);
}

/* Linux takes the rest of its time from a thread that yields: beside two busy loops a
 * core, a worker that yielded between all pieces had a hundredth of one. */
static void test_a_worker_yields_once_in_a_time_slice(void **state) {
    struct sched_job job = {.run = look_often, .client = &client, .cost = 1000000000};
    struct sched_pool *pool = create_pool(&one_worker);

    (void)state;
    sched_submit(pool, &job);
    sched_pool_destroy(pool);
    assert_int_equal(atomic_load(&num_runs), 1);
}

enum { INNER_TASKS = 20000 };

/* A large job that submits cheap ones in its first task, and counts how many have run
 * when its last task begins. It goes on until they have run: they get a share of its time
 * alone, and this thread may be put aside for long in one of them. */
static struct sched_job inner_jobs[3];
static size_t num_before_last_task;

static void submit_in_first_task(void *data, size_t index, size_t thread) {
    struct sched_worker *worker = data;
    (void)thread;
    if (index > 0 && atomic_load(&num_runs) < 3)
        usleep(100);
    if (index == INNER_TASKS - 1)
        num_before_last_task = atomic_load(&num_runs);
    for (size_t i = 0; index == 0 && i < 3; i++)
        sched_submit(worker->pool, &inner_jobs[i]);
}

static void run_large_loop(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    sched_parallel_for(worker, INNER_TASKS, submit_in_first_task, worker);
}

/* Runs a large job alone, on one worker, with `run` as its cheap jobs. */
static void run_with_inner_jobs(void (*run)(struct sched_job *job,
                                            struct sched_worker *worker)) {
    struct sched_client other = {0};
    struct sched_job large = {
        .run = run_large_loop, .client = &client, .cost = 1000000000};
    struct sched_pool *pool = create_pool(&one_worker);

    for (size_t i = 0; i < 3; i++)
        inner_jobs[i] = (struct sched_job){
            .run = run, .cost = 1000, .client = i == 2 ? &other : &client};
    sched_submit(pool, &large);
    sched_pool_destroy(pool);
    assert_int_equal(atomic_load(&num_runs), 3);
}

static void test_cheap_jobs_run_between_tasks_of_a_large_one(void **state) {
    (void)state;
    run_with_inner_jobs(count_run);
    assert_int_equal(num_before_last_task, 3);
}

static atomic_size_t inner_depth;

static void look_for_jobs(struct sched_job *job, struct sched_worker *worker) {
    assert_int_equal(atomic_fetch_add(&inner_depth, 1), 0);
    sched_checkpoint(worker);
    atomic_fetch_sub(&inner_depth, 1);
    count_run(job, worker);
}

static void test_inner_jobs_do_not_run_inner_jobs(void **state) {
    (void)state;
    run_with_inner_jobs(look_for_jobs);
    assert_int_equal(num_before_last_task, 3);
}

static atomic_int large_steps; /* what has happened, digit by digit */

static void add_step(int digit) {
    atomic_store(&large_steps, atomic_load(&large_steps) * 10 + digit);
}

static void run_innermost(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    assert_null(worker->inner);
    add_step(3);
}

static struct sched_job cheap_job = {.run = run_innermost, .cost = 1000};

static void run_middle(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    add_step(2);
    sched_submit(worker->pool, &cheap_job);
    sched_checkpoint(worker);
    add_step(4);
}

static struct sched_job middle_job = {.run = run_middle, .cost = 30000000};

/* Offers the middle job before and after the large one has used 8 times its cost. */
static void run_outermost(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    add_step(1);
    sched_submit(worker->pool, &middle_job);
    sched_checkpoint(worker);
    add_step(1);
    usleep(300000);
    sched_checkpoint(worker);
    add_step(1);
}

static void test_a_much_shorter_job_runs_inside_a_long_one(void **state) {
    struct sched_job large = {
        .run = run_outermost, .client = &client, .cost = 100000000000};
    struct sched_client other = {0};
    struct sched_pool *pool = create_pool(&one_worker);
    (void)state;

    middle_job.client = cheap_job.client = &other;
    atomic_store(&large_steps, 0);
    sched_submit(pool, &large);
    sched_pool_destroy(pool);
    /* The middle one at the second checkpoint, with the cheap one inside. */
    assert_int_equal(atomic_load(&large_steps), 112341);
}

enum { SHORTER_JOBS = 20, SHORTER_US = 3000 };

static struct sched_worker *outermost;
static struct sched_job shorter_jobs[SHORTER_JOBS];
static size_t num_inside, num_beyond_half;

/* Takes as long as was estimated. */
static void run_shorter(struct sched_job *job, struct sched_worker *worker) {
    if (!worker->is_outer) {
        num_inside++;
        num_beyond_half += outermost->inner_ns + job->cost > sched_used_ns(outermost);
    }
    usleep(SHORTER_US);
    count_run(job, worker);
}

static void offer_shorter_jobs(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    outermost = worker;
    for (size_t i = 0; i < SHORTER_JOBS; i++)
        sched_submit(worker->pool, &shorter_jobs[i]);
    usleep(10 * SHORTER_US);
    sched_checkpoint(worker);
}

static void test_shorter_jobs_get_half_of_the_time_at_most(void **state) {
    struct sched_job large = {
        .run = offer_shorter_jobs, .client = &client, .cost = 100000000000};
    struct sched_client other = {0};
    struct sched_pool *pool = create_pool(&one_worker);
    (void)state;

    num_inside = num_beyond_half = 0;
    for (size_t i = 0; i < SHORTER_JOBS; i++)
        shorter_jobs[i] = (struct sched_job){
            .run = run_shorter, .client = &other, .cost = SHORTER_US * 1000};
    sched_submit(pool, &large);
    sched_pool_destroy(pool);
    assert_int_equal(atomic_load(&num_runs), SHORTER_JOBS);
    assert_true(num_inside > 0);
    assert_int_equal(num_beyond_half, 0);
}

static const struct sched_options half_a_second = {
    .num_workers = 1, .queue_slots = 9, .max_delay = 500000000};

static void test_a_job_waits_for_a_long_one_of_its_own_client_only(void **state) {
    struct sched_client other = {0};
    struct sched_job short_job = {.client = &client, .cost = 10000000},
                     long_job = {.client = &client, .cost = 1000000000},
                     from_other = {.client = &other, .cost = 1000000000},
                     large = {.cost = 1000000000000};
    struct sched_pool *pool = create_held_pool(&half_a_second, &large);
    (void)state;

    assert_true(sched_reserve(pool, &short_job));
    assert_false(sched_reserve(pool, &long_job));
    assert_true(sched_reserve(pool, &from_other));
    assert_int_equal(sched_retry_after(pool, &from_other), 1);
    assert_in_range(sched_retry_after(pool, &long_job), 5, 9); /* 8 s less some */
    release_and_destroy(pool);
}

/* Runs until it has used max_delay, and looks for others all the while. */
static void run_for_max_delay(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    add_step(1);
    while (sched_used_ns(worker) <= half_a_second.max_delay) {
        sched_checkpoint(worker);
        usleep(1000);
    }
    sched_checkpoint(worker);
    add_step(1);
}

static void run_as_second(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    assert_false(worker->is_outer);
    add_step(2);
}

static void run_as_third(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    assert_true(worker->is_outer);
    add_step(3);
}

/* Both cost as much: that of the same client waits until the end. */
static void test_a_long_job_lets_another_client_in_after_max_delay(void **state) {
    struct sched_job large = {
        .run = run_for_max_delay, .client = &client, .cost = 100000000000};
    struct sched_client other = {0};
    struct sched_job own = {.run = run_as_third, .client = &client, .cost = 1000000000},
                     from_other = {
                         .run = run_as_second, .client = &other, .cost = 1000000000};
    struct sched_pool *pool = create_pool(&half_a_second);
    (void)state;

    atomic_store(&large_steps, 0);
    sched_submit(pool, &large);
    sched_submit(pool, &own);
    sched_submit(pool, &from_other);
    sched_pool_destroy(pool);
    assert_int_equal(atomic_load(&large_steps), 1213);
}

static void run_abandoned(struct sched_job *job, struct sched_worker *worker) {
    hold_worker(job, worker);
    sched_end_job(worker);
}

static void test_an_abandoned_job_is_charged_for_what_it_used(void **state) {
    struct sched_job large = {
        .run = run_abandoned, .client = &client, .cost = 100000000000};
    struct sched_pool *pool = create_pool(&half_a_second);
    (void)state;

    sched_submit(pool, &large);
    wait_for(&holds);
    usleep(20000);
    assert_false(sched_cancel(pool, &large));
    release_and_destroy(pool); /* the pool is gone, the client is not */
    assert_in_range(client.flows[SCHED_LARGE].tag, 50000000000 + 20000000, 99000000000);
}

static atomic_bool left_ended;

/* Submits a large job that is cancelled before it waits, and goes on until it has run. */
static void run_until_left_ends(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    assert_false(sched_cancel(worker->pool, &inner_jobs[0]));
    sched_submit(worker->pool, &inner_jobs[0]);
    for (size_t i = 0; i < 1000 && !atomic_load(&left_ended); i++)
        sched_checkpoint(worker);
    assert_true(atomic_load(&left_ended));
}

static void end_left(struct sched_job *job, struct sched_worker *worker) {
    (void)worker;
    atomic_store(&left_ended, sched_job_is_over(job));
}

/* A client may leave just before a job that was decoded waits for its turn. Its memory
 * must not wait for that turn. */
static void test_a_job_cancelled_as_it_ran_ends_inside_a_large_one(void **state) {
    struct sched_job large = {
        .run = run_until_left_ends, .client = &client, .cost = 100000000000};
    struct sched_pool *pool = create_pool(&half_a_second);
    (void)state;

    inner_jobs[0] =
        (struct sched_job){.run = end_left, .client = &client, .cost = 100000000000};
    sched_submit(pool, &large);
    sched_pool_destroy(pool);
}

static void go_on_without_end(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    for (size_t i = 0; i < 3; i++)
        sched_go_on(worker, INT64_MAX);
}

/* Tags would overflow if such an estimate were counted as it is. */
static void test_a_job_that_goes_on_is_charged_for_an_hour_at_most(void **state) {
    struct sched_job large = {.run = go_on_without_end, .client = &client};
    struct sched_pool *pool = create_pool(&half_a_second);
    (void)state;

    sched_submit(pool, &large);
    sched_pool_destroy(pool);
    assert_int_equal(client.flows[SCHED_LARGE].tag, 3 * SCHED_COST_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_worker_yields_once_in_a_time_slice),
        cmocka_unit_test(test_cheap_jobs_run_between_tasks_of_a_large_one),
        cmocka_unit_test(test_inner_jobs_do_not_run_inner_jobs),
        cmocka_unit_test(test_a_much_shorter_job_runs_inside_a_long_one),
        cmocka_unit_test(test_shorter_jobs_get_half_of_the_time_at_most),
        cmocka_unit_test(test_a_job_waits_for_a_long_one_of_its_own_client_only),
        cmocka_unit_test(test_a_long_job_lets_another_client_in_after_max_delay),
        cmocka_unit_test(test_an_abandoned_job_is_charged_for_what_it_used),
        cmocka_unit_test(test_a_job_cancelled_as_it_ran_ends_inside_a_large_one),
        cmocka_unit_test(test_a_job_that_goes_on_is_charged_for_an_hour_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
