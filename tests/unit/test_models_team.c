/* SPDX-License-Identifier: Apache-2.0 */
/* test_models_team.c: threads that share tasks. */
#include "base/error.h"
#include "models/team.h"

/* cmocka.h needs these first */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <time.h>

#define TASKS 100

/* What the tasks do, and what they note. */
struct tasks {
    size_t slow;    /* this one fails last; TASKS: none */
    size_t failing; /* and those from here on fail at once */
    atomic_int begun[TASKS];
    atomic_size_t num_begun;
    size_t reports, last_report;
};

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static attn_status run_task(void *context, size_t i, attn_error *ret_error) {
    struct tasks *tasks = context;

    atomic_fetch_add(&tasks->begun[i], 1);
    atomic_fetch_add(&tasks->num_begun, 1);
    if (i == tasks->slow)
        sleep_ms(100);
    if (i == tasks->slow || i >= tasks->failing)
        return error_set(ret_error, ATTN_E_FORMAT, "task %zu", i);
    return ATTN_OK;
}

static void note_report(void *context, size_t done, size_t count) {
    struct tasks *tasks = context;
    tasks->reports++;
    assert_true(done <= count);
    tasks->last_report = done;
}

static attn_status run_team(struct tasks *tasks, attn_error *ret_error) {
    return team_run(
        &(struct team_work){
            .count = TASKS, .run = run_task, .report = note_report, .context = tasks},
        ret_error);
}

static void test_each_task_is_done_once(void **state) {
    struct tasks tasks = {.slow = TASKS, .failing = TASKS};
    attn_error error;
    (void)state;

    assert_int_equal(run_team(&tasks, &error), ATTN_OK);
    for (size_t i = 0; i < TASKS; i++)
        assert_int_equal(tasks.begun[i], 1);
}

static void test_first_task_that_fails_gives_the_error(void **state) {
    struct tasks tasks = {.slow = 3, .failing = 4};
    attn_error error;
    (void)state;

    assert_int_equal(run_team(&tasks, &error), ATTN_E_FORMAT);
    assert_string_equal(error.text, "task 3");
}

static void test_no_task_begins_after_a_failure(void **state) {
    struct tasks tasks = {.slow = TASKS, .failing = 0};
    attn_error error;
    (void)state;

    assert_int_equal(run_team(&tasks, &error), ATTN_E_FORMAT);
    assert_string_equal(error.text, "task 0");
    assert_true(tasks.num_begun <= 8); /* one for each thread */
}

static attn_status sleep_long(void *context, size_t i, attn_error *ret_error) {
    (void)context;
    (void)ret_error;
    sleep_ms(i == 0 ? 0 : 1500);
    return ATTN_OK;
}

static void test_progress_is_reported_each_second(void **state) {
    struct tasks tasks = {.reports = 0};
    attn_error error;
    (void)state;

    const struct team_work work = {2, sleep_long, note_report, &tasks};
    assert_int_equal(team_run(&work, &error), ATTN_OK);
    assert_int_equal(tasks.reports, 1); /* the first task ends too early for one */
    assert_int_equal(tasks.last_report, 2);
}

static void test_team_without_tasks_is_done(void **state) {
    const struct team_work work = {0, run_task, note_report, NULL};
    attn_error error;
    (void)state;

    assert_int_equal(team_run(&work, &error), ATTN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_task_is_done_once),
        cmocka_unit_test(test_first_task_that_fails_gives_the_error),
        cmocka_unit_test(test_no_task_begins_after_a_failure),
        cmocka_unit_test(test_progress_is_reported_each_second),
        cmocka_unit_test(test_team_without_tasks_is_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
