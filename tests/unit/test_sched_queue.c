/* SPDX-License-Identifier: Apache-2.0 */
/* test_sched_queue.c: tests of the order in which jobs are taken. */
#include "sched/pool.h"
#include "sched/queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

enum { MS = 1000000 };

static struct queue queue;
static struct sched_client clients[3];
static struct sched_job jobs[100];
static size_t num_jobs;

static int set_up(void **state) {
    (void)state;
    queue_init(&queue);
    for (size_t i = 0; i < 3; i++)
        clients[i] = (struct sched_client){0};
    num_jobs = 0;
    return 0;
}

/* Adds a job of clients[client], whose cost is in milliseconds. */
static struct sched_job *add(size_t client, int64_t ms) {
    struct sched_job *job = &jobs[num_jobs++];
    *job = (struct sched_job){.client = &clients[client], .cost = ms * MS};
    queue_add(&queue, job);
    return job;
}

static size_t take_client(void) {
    struct sched_job *job = queue_take(&queue);
    assert_non_null(job);
    assert_false(job->waits);
    return (size_t)(job->client - clients);
}

static void test_an_empty_queue_has_no_job(void **state) {
    (void)state;
    assert_null(queue_take(&queue));
    assert_null(queue_take_inner(&queue, SCHED_CHEAP, INT64_MAX, NULL, NULL));
    assert_int_equal(queue_work(&queue), 0);
}

static void test_jobs_of_one_client_keep_their_order(void **state) {
    (void)state;
    for (size_t i = 0; i < 10; i++)
        add(0, 10 + (int64_t)i);
    for (size_t i = 0; i < 10; i++)
        assert_ptr_equal(queue_take(&queue), &jobs[i]);
    assert_null(queue_take(&queue));
}

static void test_clients_share_equally_whatever_they_submit(void **state) {
    (void)state;
    for (size_t i = 0; i < 20; i++)
        add(0, 10);
    for (size_t i = 0; i < 5; i++) {
        add(1, 10);
        add(2, 20);
    }

    size_t taken[3] = {0};
    for (size_t i = 0; i < 10; i++)
        taken[take_client()]++;
    assert_int_equal(taken[0], 4);
    assert_int_equal(taken[1], 4);
    assert_int_equal(taken[2], 2); /* its jobs take twice as long */
}

static void test_a_newcomer_is_next_whatever_the_backlog_of_others(void **state) {
    (void)state;
    for (size_t i = 0; i < 50; i++)
        add(0, 10);
    for (size_t i = 0; i < 20; i++)
        take_client();
    add(1, 10);
    assert_int_equal(take_client(), 1);
    assert_int_equal(take_client(), 0);
}

static void test_cheap_jobs_pass_large_ones_of_their_own_client(void **state) {
    (void)state;
    for (size_t i = 0; i < 10; i++)
        add(0, 100);
    take_client();
    struct sched_job *cheap = add(0, 1);
    assert_ptr_equal(queue_take(&queue), cheap);
}

static void test_cheap_jobs_have_no_more_than_their_share(void **state) {
    (void)state;
    for (size_t i = 0; i < 60; i++)
        add(0, 2);
    struct sched_job *large = add(1, 20);
    add(1, 20);
    size_t before_second = 0;

    while (queue_take(&queue) != large)
        ;
    while (queue_take(&queue)->cost <= SCHED_CHEAP_NS)
        before_second++;
    assert_in_range(before_second, 9, 11); /* as long as the first large one */
}

static void test_a_job_is_not_delayed_for_ever_by_ever_new_clients(void **state) {
    (void)state;
    static struct sched_client many[1000];
    static struct sched_job newcomers[1000];
    struct sched_job *first, *second;
    size_t taken = 0;

    add(0, 10);
    first = queue_take(&queue);
    assert_non_null(first);
    second = add(0, 10);
    for (size_t i = 0; i < 1000; i++) {
        newcomers[i] = (struct sched_job){.client = &many[i], .cost = MS};
        queue_add(&queue, &newcomers[i]);
        if (queue_take(&queue) == second)
            break;
        taken++;
    }
    assert_in_range(taken, 5, 100);
}

static void test_inner_jobs_are_cheap_and_within_their_share(void **state) {
    (void)state;
    add(0, 10);
    add(0, 10);
    assert_null(
        queue_take_inner(&queue, SCHED_CHEAP, INT64_MAX, NULL, NULL)); /* none is cheap */
    take_client();
    for (size_t i = 0; i < 20; i++)
        add(1, 1);

    size_t taken = 0;
    while (queue_take_inner(&queue, SCHED_CHEAP, 0, NULL, NULL) != NULL)
        taken++;
    assert_in_range(taken, 4, 10); /* the large one takes 10 ms */
    assert_non_null(
        queue_take_inner(&queue, SCHED_CHEAP, 20 * MS, NULL, NULL)); /* it takes longer */
}

static void test_a_new_client_has_a_turn_inside_a_large_job_too(void **state) {
    (void)state;
    add(0, 10);
    take_client();
    for (size_t i = 0; i < 20; i++)
        add(1, 2);
    while (queue_take_inner(&queue, SCHED_CHEAP, 0, NULL, NULL) != NULL)
        ;
    struct sched_job *newcomer = add(2, 1);

    assert_ptr_equal(queue_take_inner(&queue, SCHED_CHEAP, 0, NULL, NULL), newcomer);
    assert_null(queue_take_inner(&queue, SCHED_CHEAP, 0, NULL, NULL));
}

/* The most that a job of the first client may cost, and one of another, in ms. */
static bool fits_limits(const void *limits, const struct sched_job *job) {
    const int64_t *most = limits;
    return job->cost + job->later <= most[job->client != &clients[0]] * MS;
}

static struct sched_job *take_shorter(int64_t max_own_ms, int64_t max_other_ms) {
    const int64_t limits[] = {max_own_ms, max_other_ms};
    return queue_take_inner(&queue, SCHED_LARGE, 0, fits_limits, limits);
}

static void test_a_shorter_job_is_short_with_what_follows_it(void **state) {
    (void)state;
    add(0, 100);
    take_client();
    struct sched_job two_parts = {
        .client = &clients[1], .cost = 3 * MS, .later = 100 * MS};
    queue_add(&queue, &two_parts);
    struct sched_job *shorter = add(2, 5);

    assert_ptr_equal(take_shorter(0, 10), shorter);
    assert_null(take_shorter(0, 10));
    assert_ptr_equal(take_shorter(0, 103), &two_parts);
}

static void test_a_shorter_job_may_be_longer_when_another_client_sent_it(void **state) {
    (void)state;
    add(0, 100);
    take_client();
    struct sched_job *own = add(0, 20), *other = add(1, 20);

    assert_null(take_shorter(10, 19));
    assert_ptr_equal(take_shorter(10, 20), other);
    assert_null(take_shorter(19, 100));
    assert_ptr_equal(take_shorter(20, 20), own);
}

static void test_a_client_is_charged_for_what_an_abandoned_job_used(void **state) {
    (void)state;
    add(0, 1000);
    take_client();
    add(1, 10);
    queue_refund(&queue, &clients[0], 20 * MS, 980 * MS);
    add(0, 10);
    add(1, 10);
    add(1, 10);

    assert_int_equal(take_client(), 1);
    assert_int_equal(take_client(), 1);
    assert_int_equal(take_client(), 0); /* not behind 1000 ms of others */
    assert_int_equal(take_client(), 1);
}

static void test_a_refund_moves_a_client_whose_jobs_wait(void **state) {
    (void)state;
    add(0, 1000);
    take_client();
    struct sched_job *own = add(0, 10);
    add(1, 10);
    add(1, 10);
    queue_refund(&queue, &clients[0], 5 * MS, 995 * MS);

    assert_int_equal(take_client(), 1);
    assert_ptr_equal(queue_take(&queue), own);
    assert_int_equal(take_client(), 1);
    assert_int_equal(queue.num_flows, 0);
}

static void test_a_job_that_was_charged_counts_like_one_that_waited(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        add(0, 10);
        add(1, 10);
    }
    assert_int_equal(queue_charge(&queue, &clients[0], 20 * MS), 0);
    assert_int_equal(take_client(), 1);
    assert_int_equal(take_client(), 1);
    assert_int_equal(take_client(), 0);
}

static void test_priority_orders_the_jobs_of_one_client_only(void **state) {
    (void)state;
    struct sched_job *normal = add(0, 10), *other = add(1, 10), urgent[3];
    const uint32_t priorities[3] = {5, 1, 5};

    for (size_t i = 0; i < 3; i++) {
        urgent[i] = (struct sched_job){
            .client = &clients[0], .cost = 10 * MS, .priority = priorities[i]};
        queue_add(&queue, &urgent[i]);
    }

    assert_ptr_equal(queue_take(&queue), &urgent[1]);
    assert_ptr_equal(queue_take(&queue), other); /* has its turn all the same */
    assert_ptr_equal(queue_take(&queue), &urgent[0]);
    assert_ptr_equal(queue_take(&queue), &urgent[2]);
    assert_ptr_equal(queue_take(&queue), normal);
}

static struct sched_job *add_to_group(size_t client, int64_t ms, uint64_t group,
                                      size_t rows) {
    struct sched_job *job = add(client, ms);
    job->group = group;
    job->rows = rows;
    return job;
}

/* Adds a large job of a member of the first client. */
static struct sched_job *add_of(struct sched_member *member) {
    struct sched_job *job = &jobs[num_jobs++];
    *job = (struct sched_job){.client = &clients[0], .member = member, .cost = 10 * MS};
    queue_add(&queue, job);
    return job;
}

static void test_members_share_what_their_client_gets(void **state) {
    struct sched_member many = {{0}}, few = {{0}};
    size_t taken[2] = {0};
    (void)state;

    for (size_t i = 0; i < 20; i++)
        add_of(&many);
    for (size_t i = 0; i < 5; i++)
        add_of(&few);
    for (size_t i = 0; i < 20; i++)
        add(1, 10);
    for (size_t i = 0; i < 20; i++) {
        const struct sched_job *job = queue_take(&queue);
        if (job->client == &clients[0])
            taken[job->member == &few]++;
    }
    assert_int_equal(taken[0], 5); /* half of the half that is its client's */
    assert_int_equal(taken[1], 5);
}

/* A member with one job at a time is as often served as one whose jobs wait. */
static void test_member_that_comes_again_waits_for_the_others(void **state) {
    struct sched_member waits = {{0}}, comes = {{0}};
    size_t num_own = 0;
    (void)state;

    for (size_t i = 0; i < 20; i++)
        add_of(&waits);
    add_of(&comes);
    for (size_t i = 0; i < 20; i++) {
        if (queue_take(&queue)->member == &comes) {
            num_own++;
            assert_true(sched_member_is_ahead(&clients[0], &comes));
            add_of(&comes);
        }
    }
    assert_in_range(num_own, 9, 11);
}

static void test_work_before_a_member_is_what_is_taken_before_it(void **state) {
    struct sched_member many = {{0}}, other = {{0}};
    const struct sched_job next = {
        .client = &clients[0], .member = &other, .cost = 10 * MS};
    (void)state;

    for (size_t i = 0; i < 20; i++)
        add_of(&many);
    int64_t before = queue_work_before(&queue, &next);
    const struct sched_job *job = add_of(&other);
    int64_t taken = 0;
    for (const struct sched_job *at; (at = queue_take(&queue)) != job;)
        taken += at->cost;
    assert_int_equal(before, taken);
    assert_in_range(taken, 0, 10 * MS);
}

static void test_a_group_is_taken_from_all_clients_and_classes(void **state) {
    (void)state;
    struct sched_job *taken[10],
        *wanted[3] = {add_to_group(0, 1, 7, 1), add_to_group(0, 10, 7, 2),
                      add_to_group(1, 10, 7, 3)};
    add_to_group(1, 10, 8, 1);
    struct sched_job *late = add_to_group(2, 10, 7, 2), *none = add(2, 10);

    assert_int_equal(queue_take_group(&queue, 7, 7, taken, 10), 3);
    assert_memory_equal(taken, wanted, sizeof wanted); /* `late` has too many rows */
    assert_false(wanted[0]->waits);
    assert_int_equal(queue_work(&queue), 30 * MS);
    assert_int_equal(queue_take_group(&queue, 7, 100, taken, 0), 0);
    assert_int_equal(queue_take_group(&queue, 7, 100, taken, 10), 1);
    assert_ptr_equal(taken[0], late);
    assert_int_equal(take_client(), 1);
    assert_ptr_equal(queue_take(&queue), none);
}

static void test_a_job_that_was_removed_leaves_no_trace(void **state) {
    (void)state;
    struct sched_job *a = add(0, 10), *b = add(0, 10), *c = add(0, 10), *d = add(1, 10);
    queue_remove(&queue, b);
    queue_remove(&queue, d);
    assert_int_equal(queue_work(&queue), 20 * MS);
    assert_ptr_equal(queue_take(&queue), a);
    queue_remove(&queue, c);
    assert_null(queue_take(&queue));
    assert_int_equal(queue.num_flows, 0);
}

static void test_work_before_a_job_is_what_is_taken_before_it(void **state) {
    (void)state;
    for (size_t i = 0; i < 10; i++)
        add(0, 10);
    struct sched_job same = {.client = &clients[0], .cost = 10 * MS},
                     urgent = {.client = &clients[0], .cost = 10 * MS, .priority = 1},
                     new = {.client = &clients[1], .cost = 10 * MS},
                     cheap = {.client = &clients[0], .cost = MS},
                     two_parts = {.client = &clients[0], .cost = MS, .later = 10 * MS};

    assert_int_equal(queue_work_before(&queue, &same), 100 * MS);
    assert_int_equal(queue_work_before(&queue, &urgent), 0);
    assert_int_equal(queue_work_before(&queue, &new), 0);
    assert_int_equal(queue_work_before(&queue, &cheap), 0);
    assert_int_equal(queue_work_before(&queue, &two_parts), 100 * MS);

    queue_add(&queue, &two_parts);
    assert_int_equal(queue_work_before(&queue, &same), 111 * MS);
    assert_int_equal(queue_work(&queue), 111 * MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_an_empty_queue_has_no_job, set_up),
        cmocka_unit_test_setup(test_jobs_of_one_client_keep_their_order, set_up),
        cmocka_unit_test_setup(test_clients_share_equally_whatever_they_submit, set_up),
        cmocka_unit_test_setup(test_a_newcomer_is_next_whatever_the_backlog_of_others,
                               set_up),
        cmocka_unit_test_setup(test_cheap_jobs_pass_large_ones_of_their_own_client,
                               set_up),
        cmocka_unit_test_setup(test_cheap_jobs_have_no_more_than_their_share, set_up),
        cmocka_unit_test_setup(test_a_job_is_not_delayed_for_ever_by_ever_new_clients,
                               set_up),
        cmocka_unit_test_setup(test_inner_jobs_are_cheap_and_within_their_share, set_up),
        cmocka_unit_test_setup(test_a_new_client_has_a_turn_inside_a_large_job_too,
                               set_up),
        cmocka_unit_test_setup(test_a_shorter_job_is_short_with_what_follows_it, set_up),
        cmocka_unit_test_setup(
            test_a_shorter_job_may_be_longer_when_another_client_sent_it, set_up),
        cmocka_unit_test_setup(test_a_client_is_charged_for_what_an_abandoned_job_used,
                               set_up),
        cmocka_unit_test_setup(test_a_refund_moves_a_client_whose_jobs_wait, set_up),
        cmocka_unit_test_setup(test_a_job_that_was_charged_counts_like_one_that_waited,
                               set_up),
        cmocka_unit_test_setup(test_priority_orders_the_jobs_of_one_client_only, set_up),
        cmocka_unit_test_setup(test_members_share_what_their_client_gets, set_up),
        cmocka_unit_test_setup(test_member_that_comes_again_waits_for_the_others, set_up),
        cmocka_unit_test_setup(test_work_before_a_member_is_what_is_taken_before_it,
                               set_up),
        cmocka_unit_test_setup(test_a_group_is_taken_from_all_clients_and_classes,
                               set_up),
        cmocka_unit_test_setup(test_a_job_that_was_removed_leaves_no_trace, set_up),
        cmocka_unit_test_setup(test_work_before_a_job_is_what_is_taken_before_it, set_up),
    };
    return cmocka_run_group_tests_name("queue", tests, NULL, NULL);
}
