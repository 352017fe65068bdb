/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_metrics.c: tests of what is counted about requests. */
#include "fail_alloc.h"
#include "http/metrics/metrics.h"
#include "http/routes.h"
#include "models/stats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

/* Returns how many requests of the route were counted with a status. */
static uint64_t read_count(const struct request_counts *counts, size_t route,
                           int status) {
    struct request_counts total = {{{0}}};
    request_counts_sum(counts, &total);
    for (size_t i = 0; request_status_at(i) != 0; i++) {
        if (request_status_at(i) == status)
            return obs_get(&total.counts[route][i]);
    }
    fail_msg("no status %d", status);
    return 0;
}

static void test_every_status_of_the_catalogue_is_counted(void **state) {
    (void)state;
    static struct request_counts counts;
    for (enum wire_error error = 0; error < WIRE_NUM_ERRORS; error++) {
        int status = wire_error_get(error)->status;
        uint64_t before = read_count(&counts, REQUEST_ROUTES_MAX, status);
        request_counts_add(&counts, REQUEST_ROUTES_MAX, status);
        assert_int_equal(read_count(&counts, REQUEST_ROUTES_MAX, status), before + 1);
    }
}

static void test_other_statuses_count_as_the_one_before(void **state) {
    (void)state;
    static struct request_counts counts;
    const size_t route = 7;
    request_counts_add(&counts, route, 299);
    request_counts_add(&counts, route, 599);
    request_counts_add(&counts, route, 0);
    assert_int_equal(read_count(&counts, route, 204), 1);
    assert_int_equal(read_count(&counts, route, 507), 1);
    assert_int_equal(read_count(&counts, route, 200), 1);
    assert_int_equal(read_count(&counts, REQUEST_ROUTES_MAX, 200), 0);
}

static void test_every_route_is_found_by_its_pattern(void **state) {
    (void)state;
    for (size_t i = 0; i < routes_table.count; i++) {
        const struct route *route = &routes_table.routes[i];
        struct route_segment segments[ROUTE_SEGMENTS_MAX];
        char path[80];
        size_t size = (size_t)snprintf(path, sizeof path - 2, "%s", route->path);
        if (size > 1 && path[size - 1] == '/')
            strcat(path, "x");
        assert_ptr_equal(route_find(&routes_table, path, segments), route);
    }
}

static void test_statistics_are_those_of_inference(void **state) {
    (void)state;
    static struct model_stats stats;
    const struct wire_oip_statistics *counted = &stats.inference;
    struct request_facts facts = {.route = 5,
                                  .infers = true,
                                  .queue_ns = 1,
                                  .decode_ns = 20,
                                  .compute_ns = 300,
                                  .encode_ns = 4000};
    const struct request_facts refused = {.route = 2, .infers = true},
                               described = {.route = 1};

    model_stats_count(&stats, &facts, 200);
    model_stats_count(&stats, &facts, 504);
    facts.route = 0;
    model_stats_count(&stats, &facts, 200);
    model_stats_count(&stats, &refused, 503);
    model_stats_count(&stats, &refused, REQUEST_NO_REPLY);
    model_stats_count(&stats, &described, 200);
    model_stats_count(&stats, &described, 404);
    model_stats_execute(&stats, 2, &(struct model_run){40, 600, 8000});

    const uint64_t expected[WIRE_NUM_TIMES] = {
        [WIRE_TIME_SUCCESS] = 8642, [WIRE_TIME_FAIL] = 4321, [WIRE_TIME_QUEUE] = 2,
        [WIRE_TIME_INPUT] = 40,     [WIRE_TIME_INFER] = 600, [WIRE_TIME_OUTPUT] = 8000};
    for (size_t i = 0; i < WIRE_NUM_TIMES; i++)
        assert_int_equal(obs_get(&counted->ns[i]), expected[i]);
    assert_int_equal(obs_get(&counted->num_successes), 2);
    assert_int_equal(obs_get(&counted->num_failures), 3);
    assert_int_equal(obs_get(&counted->batches[0].count), 0);
    assert_int_equal(obs_get(&counted->batches[1].count), 1);
    assert_int_equal(obs_get(&counted->batches[1].infer_ns), 600);
    assert_true(obs_get(&counted->last) > 1600000000000);
}

/* Returns the sums of one histogram of a route. */
static struct obs_histogram read_histogram(const struct metrics_thread *thread,
                                           size_t route,
                                           enum metrics_histogram histogram) {
    struct obs_histogram sums = {{0}, 0};
    obs_histogram_add(&thread->histograms[route][histogram], &sums);
    return sums;
}

static void test_stages_that_were_not_reached_are_not_counted(void **state) {
    (void)state;
    struct metrics *metrics = metrics_create(1);
    const size_t route = 3;
    assert_non_null(metrics);
    struct metrics_thread *thread = &metrics->threads[0];

    metrics_count_end(metrics, thread,
                      &(struct request_facts){.route = route,
                                              .error = WIRE_E_QUEUE_FULL,
                                              .body_bytes = 100,
                                              .total_ns = 5});
    metrics_count_end(metrics, thread,
                      &(struct request_facts){.route = route,
                                              .error = WIRE_NUM_ERRORS,
                                              .queue_ns = 1,
                                              .decode_ns = 1,
                                              .compute_ns = 1,
                                              .encode_ns = 1,
                                              .rows = 3,
                                              .total_ns = 6});
    const struct {
        enum metrics_histogram histogram;
        uint64_t count, sum;
    } expected[] = {{METRICS_TOTAL, 2, 11}, {METRICS_QUEUE, 1, 1},
                    {METRICS_DECODE, 1, 1}, {METRICS_COMPUTE, 1, 1},
                    {METRICS_ENCODE, 1, 1}, {METRICS_ROWS, 1, 3},
                    {METRICS_BODY, 1, 100}};
    for (size_t i = 0; i < METRICS_NUM_HISTOGRAMS; i++) {
        struct obs_histogram sums = read_histogram(thread, route, expected[i].histogram);
        assert_int_equal(obs_histogram_values(&sums), expected[i].count);
        assert_int_equal(obs_get(&sums.sum), expected[i].sum);
    }
    assert_int_equal(obs_get(&thread->errors[WIRE_E_QUEUE_FULL]), 1);
    assert_int_equal(obs_get(&thread->ended[REQUEST_REPLIED]), 2);
    free(metrics);
}

static void test_client_that_left_is_not_a_deadline_that_is_over(void **state) {
    (void)state;
    struct metrics *metrics = metrics_create(1);
    struct request_facts facts = {.error = WIRE_E_DEADLINE_EXCEEDED, .total_ns = 1};
    assert_non_null(metrics);

    metrics_count_end(metrics, metrics->threads, &facts);
    facts.end = REQUEST_LEFT_COMPUTING;
    metrics_count_end(metrics, metrics->threads, &facts);
    assert_int_equal(obs_get(&metrics->threads->errors[facts.error]), 1);
    assert_int_equal(obs_get(&metrics->threads->ended[REQUEST_LEFT_COMPUTING]), 1);
    free(metrics);
}

static void test_bounds_of_histograms_ascend(void **state) {
    (void)state;
    for (size_t i = 0; i < METRICS_NUM_HISTOGRAMS; i++) {
        const struct obs_scale *scale = metrics_families[i].scale;
        assert_in_range(scale->num_bounds, 5, OBS_BOUNDS_MAX);
        for (size_t at = 1; at < scale->num_bounds; at++)
            assert_true(scale->bounds[at - 1] < scale->bounds[at]);
    }
}

static void count_error(struct metrics *metrics, enum wire_error error) {
    metrics_count_end(metrics, metrics->threads, &(struct request_facts){.error = error});
}

static void test_refusals_are_said_once_in_ten_seconds(void **state) {
    (void)state;
    struct metrics *metrics = metrics_create(1);
    assert_non_null(metrics);
    struct log_limit *limit = &metrics->refused;

    count_error(metrics, WIRE_E_SHAPE_MISMATCH);
    assert_int_equal(atomic_load(&limit->num_events), 0);
    metrics_warn_of_refusals(metrics);
    assert_int_equal(atomic_load(&limit->taken_at), 0);

    for (enum wire_error error = 0; error < WIRE_NUM_ERRORS; error++)
        count_error(metrics, error);
    assert_int_equal(atomic_load(&limit->num_events), 8);
    metrics_warn_of_refusals(metrics);
    assert_int_equal(atomic_load(&limit->num_events), 0);
    assert_int_equal(obs_get(&metrics->reported[WIRE_E_QUEUE_FULL]), 1);

    count_error(metrics, WIRE_E_QUEUE_FULL);
    metrics_warn_of_refusals(metrics);
    assert_int_equal(atomic_load(&limit->num_events), 1);
    atomic_fetch_sub(&limit->taken_at, 11000000000);
    metrics_warn_of_refusals(metrics);
    assert_int_equal(atomic_load(&limit->num_events), 0);
    assert_int_equal(obs_get(&metrics->reported[WIRE_E_QUEUE_FULL]), 2);
    free(metrics);
}

static void test_metrics_report_that_memory_is_short(void **state) {
    (void)state;
    for (size_t nth = 1;; nth++) {
        fail_alloc_at(nth);
        struct metrics *metrics = metrics_create(2);
        bool failed = fail_alloc_stop();
        bool created = metrics != NULL;
        free(metrics);
        if (created) { /* what cannot be read of the process is left out */
            assert_true(nth > 1);
            if (!failed)
                break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_status_of_the_catalogue_is_counted),
        cmocka_unit_test(test_other_statuses_count_as_the_one_before),
        cmocka_unit_test(test_every_route_is_found_by_its_pattern),
        cmocka_unit_test(test_statistics_are_those_of_inference),
        cmocka_unit_test(test_stages_that_were_not_reached_are_not_counted),
        cmocka_unit_test(test_client_that_left_is_not_a_deadline_that_is_over),
        cmocka_unit_test(test_bounds_of_histograms_ascend),
        cmocka_unit_test(test_refusals_are_said_once_in_ten_seconds),
        cmocka_unit_test(test_metrics_report_that_memory_is_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
