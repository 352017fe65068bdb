/* SPDX-License-Identifier: Apache-2.0 */
/* test_sched_pool.c: tests of the queue of jobs, of parallel loops and of the budget. */
#include "fail_alloc.h"
#include "sched/budget.h"
#include "sched_fixture.h"

#include <pthread.h>

static atomic_size_t num_calls;

static void count_call(void *context) {
    (void)context;
    atomic_fetch_add(&num_calls, 1);
}

static const struct sched_options options = {
    .num_workers = 3, .queue_slots = 8, .arena_keep = 1 << 20};
static const struct sched_options one_slot = {.num_workers = 1, .queue_slots = 1};

static void test_a_call_runs_once_on_each_worker_that_is_not_busy(void **state) {
    (void)state;
    struct sched_job job = {.run = hold_worker, .client = &client};
    struct sched_pool *pool = create_pool(&options);

    for (size_t i = 1; i <= 20; i++) {
        atomic_store(&num_calls, 0);
        assert_int_equal(sched_call_on_each(pool, count_call, NULL, INT64_MAX / 4), 3);
        assert_int_equal(atomic_load(&num_calls), 3);
    }

    assert_true(sched_reserve(pool, &job));
    sched_submit(pool, &job);
    wait_for(&holds);
    atomic_store(&num_calls, 0);
    assert_int_equal(sched_call_on_each(pool, count_call, NULL, 50000000), 2);
    atomic_store(&may_go_on, true);
    sched_pool_destroy(pool);
    assert_int_equal(atomic_load(&num_calls), 2);
    sched_pool_destroy(NULL);
}

/* What the producers have in common. */
struct load {
    struct sched_pool *pool;
    struct sched_job jobs[4][2000];
};

struct producer {
    struct load *load;
    size_t index;
};

static void *produce(void *argument) {
    struct producer *producer = argument;
    for (size_t i = 0; i < 2000; i++) {
        struct sched_job *job = &producer->load->jobs[producer->index][i];
        job->run = count_run;
        job->client = &client;
        while (!sched_reserve(producer->load->pool, job))
            usleep(10);
        sched_submit(producer->load->pool, job);
    }
    return NULL;
}

static void test_every_job_of_many_producers_runs_once(void **state) {
    (void)state;
    static struct load load;
    struct producer producers[4];
    pthread_t threads[4];

    load.pool = create_pool(&options);
    for (size_t i = 0; i < 4; i++) {
        producers[i] = (struct producer){&load, i};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);

    sched_pool_destroy(load.pool); /* waits for what is queued */
    assert_int_equal(atomic_load(&num_runs), 8000);
}

static void test_a_full_queue_refuses_and_a_taken_job_frees_its_slot(void **state) {
    (void)state;
    struct sched_job first = {.run = hold_worker, .client = &client},
                     second = {.run = count_run, .client = &client};
    struct sched_pool *pool = create_pool(&one_slot);

    assert_true(sched_reserve(pool, &first));
    assert_false(reserve(pool));
    sched_submit(pool, &first);
    wait_for(&holds);
    assert_true(sched_reserve(pool, &second));
    assert_false(reserve(pool));

    sched_submit(pool, &second);
    release_and_destroy(pool);
    assert_int_equal(atomic_load(&num_runs), 2);
}

static void test_load_is_what_runs_and_what_waits(void **state) {
    (void)state;
    const struct sched_options seven_slots = {
        .num_workers = 1, .queue_slots = 7, .max_delay = 9000000000};
    struct sched_job running = {.cost = 4000000000},
                     waiting = {.run = count_run, .client = &client, .cost = 3000000000};
    struct sched_pool *pool = create_held_pool(&seven_slots, &running);

    struct sched_load load = sched_get_load(pool);
    assert_int_equal(load.num_workers, 1);
    assert_int_equal(load.num_busy, 1);
    assert_int_equal(load.num_queued, 0);
    assert_int_equal(load.num_slots, 7);
    assert_int_equal(load.max_delay, seven_slots.max_delay);
    assert_in_range(load.delay, 0, 4000000000);
    sched_submit(pool, &waiting);
    load = sched_get_load(pool);
    assert_int_equal(load.num_queued, 1);
    assert_in_range(load.delay, 3000000000, 7000000000);

    release_and_destroy(pool);
}

static void test_a_job_that_continues_another_needs_no_slot(void **state) {
    (void)state;
    struct sched_job running = {0}, first = {.run = count_run, .client = &client},
                     continued = first;
    struct sched_pool *pool = create_held_pool(&one_slot, &running);

    assert_true(sched_reserve(pool, &first));
    sched_submit(pool, &first);
    assert_false(reserve(pool));
    sched_submit(pool, &continued);
    assert_false(reserve(pool));

    release_and_destroy(pool);
    assert_int_equal(atomic_load(&num_runs), 3);
}

static void test_a_job_waits_only_behind_so_much_work(void **state) {
    (void)state;
    const struct sched_options one_second = {
        .num_workers = 1, .queue_slots = 100, .max_delay = 1000000000};
    const int64_t ms = 1000000;
    struct sched_client other = {0};
    struct sched_job running = {0},
                     large = {.run = count_run, .client = &client, .cost = 5000 * ms},
                     cheap = {.client = &client, .cost = ms},
                     same = {.client = &client, .cost = 3 * ms},
                     from_other = {.client = &other, .cost = 3 * ms},
                     decoded_later = {.client = &client, .later = 3 * ms};
    struct sched_pool *pool = create_held_pool(&one_second, &running);

    assert_true(sched_reserve(pool, &large)); /* its own length does not count */
    sched_submit(pool, &large);
    assert_int_equal(sched_retry_after(pool, &same), 6);
    assert_int_equal(sched_retry_after(pool, &cheap), 1);
    assert_int_equal(sched_retry_after(pool, &from_other), 1);
    assert_false(sched_reserve(pool, &same));
    assert_false(sched_reserve(pool, &decoded_later));
    assert_true(sched_reserve(pool, &cheap));      /* passes the large ones */
    assert_true(sched_reserve(pool, &from_other)); /* has a share of its own */
    release_and_destroy(pool);
}

static void test_one_client_leaves_slots_to_others(void **state) {
    (void)state;
    const struct sched_options ten_slots = {
        .num_workers = 1, .queue_slots = 10, .max_delay = INT64_MAX};
    struct sched_client other = {0};
    struct sched_job running = {0}, jobs[9],
                     from_other = {.run = count_run, .client = &other},
                     refused = from_other;
    struct sched_pool *pool = create_held_pool(&ten_slots, &running);

    for (size_t i = 0; i < 9; i++) {
        jobs[i] = (struct sched_job){.run = count_run, .client = &client};
        assert_true(sched_reserve(pool, &jobs[i]));
        sched_submit(pool, &jobs[i]);
    }
    assert_false(reserve(pool));
    assert_true(sched_reserve(pool, &from_other));
    sched_submit(pool, &from_other);
    assert_false(sched_reserve(pool, &refused)); /* no slot is free */
    release_and_destroy(pool);
}

static void test_a_job_that_waits_can_be_taken_back(void **state) {
    (void)state;
    struct sched_job running = {0}, waiting = {.run = count_run, .client = &client};
    struct sched_pool *pool = create_held_pool(&one_slot, &running);
    assert_true(sched_reserve(pool, &waiting));
    sched_submit(pool, &waiting);

    assert_true(sched_cancel(pool, &waiting));
    assert_false(sched_cancel(pool, &running));
    assert_true(sched_job_is_over(&running));
    assert_true(reserve(pool)); /* the slot is free */
    release_and_destroy(pool);
    assert_int_equal(atomic_load(&num_runs), 1);
}

enum { TASKS = 5000 };

static atomic_size_t task_runs[TASKS];
static atomic_size_t busy_threads; /* a bit for each thread that runs a task */

static void count_task(void *data, size_t index, size_t thread) {
    assert_ptr_equal(data, task_runs);
    assert_in_range(thread, 0, 2);
    assert_int_equal(atomic_fetch_or(&busy_threads, (size_t)1 << thread) >> thread & 1,
                     0);
    atomic_fetch_add(&task_runs[index], 1);
    atomic_fetch_and(&busy_threads, ~((size_t)1 << thread));
}

static void run_parallel_for(struct sched_job *job, struct sched_worker *worker) {
    sched_parallel_for(worker, TASKS, count_task, task_runs);
    count_run(job, worker);
}

static void test_every_task_runs_once_and_no_thread_runs_two_at_a_time(void **state) {
    (void)state;
    struct sched_job jobs[6] = {0};
    struct sched_pool *pool = create_pool(&options);

    for (size_t i = 0; i < TASKS; i++)
        atomic_store(&task_runs[i], 0);
    assert_int_equal(sched_num_workers(pool), 3);

    for (size_t i = 0; i < 6; i++) {
        jobs[i].run = run_parallel_for;
        jobs[i].client = &client;
        while (!sched_reserve(pool, &jobs[i]))
            usleep(10);
        sched_submit(pool, &jobs[i]);
    }

    sched_pool_destroy(pool);
    assert_int_equal(atomic_load(&num_runs), 6);
    for (size_t i = 0; i < TASKS; i++)
        assert_int_equal(atomic_load(&task_runs[i]), 6);
}

static atomic_bool owner_works, helper_works, job_is_queued, job_has_run;
static atomic_size_t tasks_begun, tasks_begun_before_job;

/* The owner is busy until the other job has run. A helper is in its first task when that
 * job is queued, and the owner too; other tasks take no time. */
static void wait_for_job(void *data, size_t index, size_t thread) {
    (void)index;
    atomic_fetch_add(&tasks_begun, 1);
    if (thread == *(const size_t *)data) {
        atomic_store(&owner_works, true);
        wait_for(&job_has_run);
    } else {
        wait_for(&owner_works);
        atomic_store(&helper_works, true);
        wait_for(&job_is_queued);
    }
}

static void run_loop_and_wait(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    sched_parallel_for(worker, TASKS, wait_for_job, &worker->index);
}

static void note_tasks(struct sched_job *job, struct sched_worker *worker) {
    (void)job;
    (void)worker;
    atomic_store(&tasks_begun_before_job, atomic_load(&tasks_begun));
    atomic_store(&job_has_run, true);
}

static void test_a_helper_leaves_when_a_job_waits(void **state) {
    (void)state;
    const struct sched_options two = {.num_workers = 2, .queue_slots = 2};
    struct sched_job large = {.run = run_loop_and_wait, .client = &client},
                     small = {.run = note_tasks, .client = &client};
    struct sched_pool *pool = create_pool(&two);

    assert_true(sched_reserve(pool, &large) && sched_reserve(pool, &small));
    sched_submit(pool, &large);
    wait_for(&helper_works);
    sched_submit(pool, &small);
    atomic_store(&job_is_queued, true);
    sched_pool_destroy(pool);

    assert_int_equal(atomic_load(&tasks_begun), TASKS);
    assert_int_equal(atomic_load(&tasks_begun_before_job), 2);
}

static atomic_size_t tasks_run;

static void cancel_in_first_task(void *data, size_t index, size_t thread) {
    (void)thread;
    atomic_fetch_add(&tasks_run, 1);
    if (index == 0)
        atomic_store((atomic_bool *)data, true);
}

static void run_cancelled_loop(struct sched_job *job, struct sched_worker *worker) {
    sched_parallel_for(worker, TASKS, cancel_in_first_task, &job->cancelled);
}

/* Loops of one task each. Those of results that others wait for go on. */
static void run_cancelled_loops(struct sched_job *job, struct sched_worker *worker) {
    for (size_t i = 0; i < 3; i++)
        sched_parallel_for(worker, 1, cancel_in_first_task, &job->cancelled);
    worker->shares_loops = true;
    sched_parallel_for(worker, 1, cancel_in_first_task, &job->cancelled);
}

static void test_tasks_that_nobody_wants_are_omitted(void **state) {
    (void)state;
    struct sched_job cancelled = {.run = run_cancelled_loop, .client = &client},
                     late = {.run = run_cancelled_loop, .client = &client, .deadline = 1},
                     single = {.run = run_cancelled_loops, .client = &client};

    struct sched_pool *pool = create_pool(&one_slot);

    atomic_store(&tasks_run, 0);
    sched_submit(pool, &cancelled);
    sched_submit(pool, &late);
    sched_submit(pool, &single);
    sched_pool_destroy(pool);
    assert_int_equal(atomic_load(&tasks_run), 1 + 2);
}

static void test_pool_without_memory_is_not_created(void **state) {
    (void)state;
    struct sched_pool *pool = NULL;
    size_t nth = 1;

    for (;; nth++) {
        fail_alloc_at(nth);
        attn_status status = sched_pool_create(&options, &pool);
        if (!fail_alloc_stop())
            break;
        assert_int_equal(status, ATTN_E_NOMEM);
        assert_null(pool);
    }
    assert_in_range(nth, 4, 100); /* the pool and two arrays were tried */
    sched_pool_destroy(pool);
}

static void test_budget_never_exceeds_its_limit(void **state) {
    (void)state;
    struct sched_budget budget;
    sched_budget_init(&budget, 100);
    assert_true(sched_budget_reserve(&budget, 60));
    assert_false(sched_budget_reserve(&budget, 41));
    assert_false(sched_budget_reserve(&budget, SIZE_MAX));
    assert_true(sched_budget_reserve(&budget, 40));
    sched_budget_release(&budget, 60);
    assert_true(sched_budget_reserve(&budget, 60));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_runs_once_on_each_worker_that_is_not_busy),
        cmocka_unit_test(test_every_job_of_many_producers_runs_once),
        cmocka_unit_test(test_a_full_queue_refuses_and_a_taken_job_frees_its_slot),
        cmocka_unit_test(test_load_is_what_runs_and_what_waits),
        cmocka_unit_test(test_a_job_that_continues_another_needs_no_slot),
        cmocka_unit_test(test_a_job_waits_only_behind_so_much_work),
        cmocka_unit_test(test_one_client_leaves_slots_to_others),
        cmocka_unit_test(test_a_job_that_waits_can_be_taken_back),
        cmocka_unit_test(test_every_task_runs_once_and_no_thread_runs_two_at_a_time),
        cmocka_unit_test(test_a_helper_leaves_when_a_job_waits),
        cmocka_unit_test(test_tasks_that_nobody_wants_are_omitted),
        cmocka_unit_test(test_pool_without_memory_is_not_created),
        cmocka_unit_test(test_budget_never_exceeds_its_limit),
    };
    return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
