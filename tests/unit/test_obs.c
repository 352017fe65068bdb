/* SPDX-License-Identifier: Apache-2.0 */
/* test_obs.c: tests of histograms, of Prometheus's text and of what the kernel says. */
#include "fail_alloc.h"
#include "obs/process.h"
#include "obs/text.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static const struct obs_scale ms = {{1000000, 2500000, 10000000}, 3, 1e-9};

/* Compares what `text` has written, and frees it. */
static void assert_text(struct obs_text *text, const char *expected) {
    buf_append(text->body, "", 1);
    assert_int_equal(text->body->status, ATTN_OK);
    assert_string_equal(text->body->data, expected);
    buf_deinit(text->body);
}

static struct obs_text begin_text(struct buf *body) {
    buf_init(body, 1 << 20);
    return (struct obs_text){.body = body};
}

static void test_family_begins_with_help_and_type(void **state) {
    (void)state;
    struct buf body;
    struct obs_text text = begin_text(&body);
    obs_text_family(&text, "a_total", OBS_COUNTER, "What a is.");
    obs_text_value(&text, NULL, 0, 3);
    obs_text_family(&text, "b", OBS_GAUGE, "What b is.");
    obs_text_value(&text, (struct obs_label[]){{"x", "1"}, {"y", "2"}}, 2, 0.1);
    assert_text(&text, "# HELP a_total What a is.\n# TYPE a_total counter\na_total 3\n"
                       "# HELP b What b is.\n# TYPE b gauge\nb{x=\"1\",y=\"2\"} 0.1\n");
}

static void test_values_of_labels_are_escaped(void **state) {
    (void)state;
    static const struct {
        const char *value, *line;
    } cases[] = {{"", "a{x=\"\"} 1\n"},
                 {"\\", "a{x=\"\\\\\"} 1\n"},
                 {"\"", "a{x=\"\\\"\"} 1\n"},
                 {"\n", "a{x=\"\\n\"} 1\n"},
                 {"b\\\"\n\nc{}, \xc3\xa9", "a{x=\"b\\\\\\\"\\n\\nc{}, \xc3\xa9\"} 1\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf body;
        struct obs_text text = begin_text(&body);
        text.family = "a";
        obs_text_value(&text, &(struct obs_label){"x", cases[i].value}, 1, 1);
        assert_text(&text, cases[i].line);
    }
}

static void test_numbers_are_written_as_prometheus_reads_them(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *line;
    } cases[] = {{0, "a 0\n"},
                 {0.3, "a 0.3\n"},
                 {999999999999999, "a 999999999999999\n"},
                 {1e-5, "a 1e-05\n"},
                 {(double)INFINITY, "a +Inf\n"},
                 {-(double)INFINITY, "a -Inf\n"},
                 {(double)NAN, "a NaN\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf body;
        struct obs_text text = begin_text(&body);
        text.family = "a";
        obs_text_value(&text, NULL, 0, cases[i].value);
        assert_text(&text, cases[i].line);
    }
}

static void test_histogram_counts_up_to_and_with_each_bound(void **state) {
    (void)state;
    static const uint64_t values[] = {0, 1000000, 1000001, 2500000, 10000000, 10000001};
    struct obs_histogram histogram = {{0}, 0};
    struct obs_histogram sums = {{0}, 0};
    struct buf body;
    struct obs_text text = begin_text(&body);

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        obs_histogram_count(&histogram, &ms, values[i]);
    obs_histogram_add(&histogram, &sums);
    assert_int_equal(obs_histogram_values(&sums), 6);
    text.family = "a";
    obs_text_histogram(&text, &(struct obs_label){"x", "1"}, &ms, &sums);
    assert_text(&text, "a_bucket{x=\"1\",le=\"0.001\"} 2\n"
                       "a_bucket{x=\"1\",le=\"0.0025\"} 4\n"
                       "a_bucket{x=\"1\",le=\"0.01\"} 5\n"
                       "a_bucket{x=\"1\",le=\"+Inf\"} 6\n"
                       "a_sum{x=\"1\"} 0.024500002\n"
                       "a_count{x=\"1\"} 6\n");
}

static void test_histograms_of_several_threads_add_up(void **state) {
    (void)state;
    struct obs_histogram histograms[2] = {{{0}, 0}};
    struct obs_histogram sums = {{0}, 0};
    struct buf body;
    struct obs_text text = begin_text(&body);

    obs_histogram_count(&histograms[0], &ms, 500000);
    obs_histogram_count(&histograms[1], &ms, 500000);
    obs_histogram_count(&histograms[1], &ms, 3000000);
    obs_histogram_add(&histograms[0], &sums);
    obs_histogram_add(&histograms[1], &sums);
    text.family = "a";
    obs_text_histogram(&text, &(struct obs_label){"x", "1"}, &ms, &sums);
    assert_text(&text, "a_bucket{x=\"1\",le=\"0.001\"} 2\n"
                       "a_bucket{x=\"1\",le=\"0.0025\"} 2\n"
                       "a_bucket{x=\"1\",le=\"0.01\"} 3\n"
                       "a_bucket{x=\"1\",le=\"+Inf\"} 3\n"
                       "a_sum{x=\"1\"} 0.004\na_count{x=\"1\"} 3\n");
}

static void test_text_reports_that_memory_was_short(void **state) {
    (void)state;
    size_t nth;
    for (nth = 1;; nth++) {
        struct buf body;
        struct obs_text text = begin_text(&body);
        fail_alloc_at(nth);
        for (size_t i = 0; i < 100; i++)
            obs_text_family(&text, "a", OBS_HISTOGRAM, "What a is.");
        bool failed = fail_alloc_stop();
        assert_int_equal(body.status, failed ? ATTN_E_NOMEM : ATTN_OK);
        buf_deinit(&body);
        if (!failed)
            break;
    }
    assert_true(nth > 3);
}

static void test_process_is_that_of_the_test(void **state) {
    (void)state;
    double start = obs_process_start(), now = (double)time(NULL);
    assert_true(start > now - 3600 && start < now + 1);

    struct obs_process before = obs_process_read();
    char *memory = malloc(32 << 20);
    assert_non_null(memory);
    memset(memory, 1, 32 << 20);
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct obs_process after = obs_process_read();
    assert_true(fd >= 0 && memory[1000] == 1);
    close(fd);
    free(memory);

    assert_true(before.cpu > 0 && after.cpu > before.cpu);
    assert_true(after.resident - before.resident > 30 << 20);
    assert_true(before.open_fds >= 3 && after.open_fds == before.open_fds + 1);
    assert_true(after.max_fds > after.open_fds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_family_begins_with_help_and_type),
        cmocka_unit_test(test_values_of_labels_are_escaped),
        cmocka_unit_test(test_numbers_are_written_as_prometheus_reads_them),
        cmocka_unit_test(test_histogram_counts_up_to_and_with_each_bound),
        cmocka_unit_test(test_histograms_of_several_threads_add_up),
        cmocka_unit_test(test_text_reports_that_memory_was_short),
        cmocka_unit_test(test_process_is_that_of_the_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
