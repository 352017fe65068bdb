/* SPDX-License-Identifier: Apache-2.0 */
/* test_bench_http.c: tests of what attnd-bench http is made of: buckets, arrivals, URLs,
 * the end of replies, and what is said of the generator. tests/http/test_bench_http.py
 * runs the program. */
#include "bench/http/arrivals.h"
#include "bench/http/histogram.h"
#include "bench/http/reply.h"
#include "bench/http/report.h"
#include "bench/http/target.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

/* --- buckets --- */

#define VALUES 20000

static int compare_values(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Compares quantiles with those of a sort: at most a thousandth larger, never smaller. */
static void assert_quantiles(uint64_t *values, size_t count) {
    static const unsigned shares[] = {1, 100, 5000, 9000, 9900, 9990, 9999, 10000};
    struct load_histogram *histogram = calloc(1, sizeof *histogram);

    assert_non_null(histogram);
    for (size_t i = 0; i < count; i++)
        load_histogram_add(histogram, values[i]);
    qsort(values, count, sizeof *values, compare_values);
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        size_t rank = (count * shares[i] + 9999) / 10000;
        uint64_t sorted = values[rank - 1];
        uint64_t found = load_histogram_quantile(histogram, shares[i]);
        assert_true(found >= sorted && found <= sorted + sorted / 1000);
    }
    assert_true(histogram->total == count && histogram->max == values[count - 1]);
    assert_true(load_histogram_quantile(histogram, 10000) == histogram->max);
    free(histogram);
}

static void test_quantiles_are_those_of_a_sort_to_three_digits(void **state) {
    (void)state;
    uint64_t *values = calloc(VALUES, sizeof *values), random = 7;

    for (unsigned bits = 1; bits <= 42; bits++) { /* of one size, and log-uniform */
        for (size_t i = 0; i < VALUES; i++) {
            uint64_t x = load_random(&random);
            values[i] = x >> (64 - bits);
        }
        assert_quantiles(values, VALUES);
    }
    for (size_t i = 0; i < VALUES; i++)
        values[i] = load_random(&random) >> (22 + load_random(&random) % 42);
    assert_quantiles(values, VALUES);
    assert_quantiles(values, 1);
    free(values);
}

static void test_values_at_the_ends_have_a_bucket(void **state) {
    (void)state;
    struct load_histogram *histogram = calloc(1, sizeof *histogram);
    assert_true(load_histogram_quantile(histogram, 5000) == 0);
    load_histogram_add(histogram, 0);
    assert_true(load_histogram_quantile(histogram, 10000) == 0);
    load_histogram_add(histogram, UINT64_MAX);
    load_histogram_add(histogram, LOAD_NS_MAX);
    assert_true(histogram->max == LOAD_NS_MAX);
    assert_true(histogram->counts[LOAD_BUCKETS - 1] == 2 && histogram->counts[0] == 1);
    free(histogram);
}

/* --- arrivals --- */

/* Rates and spans whose products are whole, and one that is rounded. */
static void test_span_has_as_many_moments_as_its_rate_makes(void **state) {
    (void)state;
    static const struct {
        double rate;
        int64_t seconds;
        size_t count;
    } cases[] = {
        {20, 10, 200}, {0.1, 10, 1}, {1000, 0, 0}, {7.34, 5, 37}, {1e6, 1, 1000000}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (unsigned poisson = 0; poisson < 2; poisson++) {
            const int64_t start = 3000000000, end = start + cases[i].seconds * 1000000000;
            struct load_arrivals arrivals =
                load_arrivals_begin(poisson, cases[i].rate, start, end);
            uint64_t random = 1;
            int64_t before = start;
            for (size_t n = 0; n < cases[i].count; n++) {
                int64_t at = load_arrivals_next(&arrivals, &random);
                assert_true(before <= at && at < end);
                before = at;
            }
            assert_true(load_arrivals_next(&arrivals, &random) == LOAD_NEVER);
        }
    }
}

/* Of n uniform moments the k-th has the mean k / (n + 1), and gaps are those of a Poisson
 * process: as long as their deviation. */
static void test_random_moments_are_uniform(void **state) {
    (void)state;
    enum { MOMENTS = 9, SPANS = 40000, SPAN_NS = 1000000000, GAPS = 200000 };
    double sums[MOMENTS] = {0}, sum = 0, squares = 0, before = 0;
    uint64_t random = 1;
    size_t long_gaps = 0;

    for (size_t s = 0; s < SPANS; s++) {
        struct load_arrivals few = load_arrivals_begin(true, MOMENTS, 0, SPAN_NS);
        for (size_t k = 0; k < MOMENTS; k++)
            sums[k] += (double)load_arrivals_next(&few, &random) / SPAN_NS;
    }
    for (size_t k = 0; k < MOMENTS; k++)
        assert_true(fabs(sums[k] / SPANS - (double)(k + 1) / (MOMENTS + 1)) < 0.005);

    struct load_arrivals arrivals =
        load_arrivals_begin(true, 1000, 0, (int64_t)GAPS * 1000000);
    for (size_t i = 0; i < GAPS; i++) {
        double at = (double)load_arrivals_next(&arrivals, &random) * 1e-6;
        double gap = at - before;
        before = at;
        sum += gap; /* ms: the mean and the deviation are 1 */
        squares += gap * gap;
        long_gaps += gap > 3;
    }
    double mean = sum / GAPS, variance = squares / GAPS - mean * mean;
    assert_true(fabs(mean - 1) < 0.01 && fabs(variance - 1) < 0.03);
    assert_true(fabs((double)long_gaps / GAPS - exp(-3)) < 0.002);
}

static void test_seed_decides_the_arrivals(void **state) {
    (void)state;
    struct load_arrivals a = load_arrivals_begin(true, 50, 0, 10000000000), b = a;
    struct load_arrivals other = a;
    uint64_t three = 3, also_three = 3, four = 4;
    size_t same = 0;

    for (size_t i = 0; i < 100; i++) {
        int64_t at = load_arrivals_next(&a, &three);
        assert_true(at == load_arrivals_next(&b, &also_three));
        same += at == load_arrivals_next(&other, &four);
    }
    assert_int_equal(same, 0);
}

static void test_constant_arrivals_have_equal_gaps(void **state) {
    (void)state;
    struct load_arrivals arrivals = load_arrivals_begin(false, 4, 0, 250000000000);
    for (int64_t i = 0; i < 1000; i++)
        assert_true(load_arrivals_next(&arrivals, NULL) == i * 250000000);
}

/* --- URLs --- */

static void test_url_is_split(void **state) {
    (void)state;
    static const struct {
        const char *text, *listen, *path;
    } cases[] = {
        {"http://127.0.0.1:8080", "127.0.0.1:8080", "/"},
        {"127.0.0.1:8080/", "127.0.0.1:8080", "/"},
        {"http://a-b.c_d:1/x?y=/z", "a-b.c_d:1", "/x?y=/z"},
        {"http://[::1]:65535/", "[::1]:65535", "/"},
        {"unix:/run/a.sock", "unix:/run/a.sock", "/"},
    };
    struct load_target target;
    attn_error error;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(load_target_parse(cases[i].text, &target, &error), ATTN_OK);
        assert_string_equal(target.listen, cases[i].listen);
        assert_string_equal(target.path, cases[i].path);
    }
}

static void test_wrong_url_says_what_to_write(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "HOST:PORT"},
        {"https://a", "no TLS"},
        {"http://", "HOST:PORT"},
        {"http://name", "HOST:PORT"},
        {"http://name/", "HOST:PORT"},
        {"http://a:65536", "out of range"},
        {"http://user@a", "HOST:PORT"},
        {"http://[::1", "HOST:PORT"},
        {"http://a:1?x", "HOST:PORT"},
        {"http://a:1/#x", "path"},
        {"http://a:1/x y", "path"},
        {"http://a:1/\r\nX: y", "path"},
        {"unix:", "must begin with '/'"},
        {"unix:s", "must begin with '/'"},
    };
    struct load_target target;
    attn_error error;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(load_target_parse(cases[i].text, &target, &error), ATTN_E_VALUE);
        assert_non_null(strstr(error.text, cases[i].words));
    }
    char text[LOAD_PATH_MAX + 64];
    snprintf(text, sizeof text, "http://a:1/%0*d", LOAD_PATH_MAX - 1, 0);
    assert_int_equal(load_target_parse(text, &target, &error), ATTN_OK);
    snprintf(text, sizeof text, "http://a:1/%0*d", LOAD_PATH_MAX, 0);
    assert_int_equal(load_target_parse(text, &target, &error), ATTN_E_VALUE);
    snprintf(text, sizeof text, "http://%0*d:80", LISTEN_TEXT_MAX, 0);
    assert_int_equal(load_target_parse(text, &target, &error), ATTN_E_VALUE);
    snprintf(text, sizeof text, "unix:/%0*d", 106, 0);
    assert_int_equal(load_target_parse(text, &target, &error), ATTN_OK);
    snprintf(text, sizeof text, "unix:/%0*d", 107, 0);
    assert_int_equal(load_target_parse(text, &target, &error), ATTN_E_VALUE);
}

/* --- replies --- */

#define OK_HEAD "HTTP/1.1 200 OK\r\nServer: a\r\n"

/* Takes a reply in pieces of `step` bytes. Returns what the last one said. */
static enum load_progress take_reply(struct load_reply *reply, const char *text,
                                     size_t size, size_t step) {
    enum load_progress progress = LOAD_MORE;

    memset(reply, 0xa5, sizeof *reply);
    load_reply_reset(reply);
    for (size_t at = 0; at < size && progress == LOAD_MORE; at += step)
        progress = load_reply_take(reply, text + at, size - at < step ? size - at : step);
    return progress;
}

static void test_end_of_a_reply_is_found_however_it_arrives(void **state) {
    (void)state;
    static const struct {
        const char *text;
        enum load_progress progress;
        int status;
        bool close;
    } cases[] = {
        {OK_HEAD "Content-Length: 3\r\n\r\nabc", LOAD_WHOLE, 200, false},
        {OK_HEAD "content-length:3 \r\nConnection: Close\r\n\r\nabc", LOAD_WHOLE, 200,
         true},
        {OK_HEAD "Content-Length: 3\r\n\r\nab", LOAD_MORE, 200, false},
        {"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", LOAD_WHOLE, 503, false},
        {"HTTP/1.1 204\r\n\r\n", LOAD_WHOLE, 204, false},
        {"HTTP/1.1 304 a\r\nContent-Length: 9\r\n\r\n", LOAD_WHOLE, 304, false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", LOAD_WHOLE, 200, true},
        {OK_HEAD
         "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA ;x=\"y\"\r\n0123456789\r\n"
         "0\r\nTrailer: x\r\n\r\n",
         LOAD_WHOLE, 200, false},
        {OK_HEAD "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", LOAD_WHOLE, 200, false},
        {OK_HEAD "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", LOAD_MORE, 200,
         false},
        {OK_HEAD "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
                 "1\r\na\r\n0\r\n\r\n",
         LOAD_WHOLE, 200, false},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nConnection: close\r\n"
         "Content-Length: 9\r\n\r\n" OK_HEAD "Content-Length: 3\r\n\r\nabc",
         LOAD_WHOLE, 200, false},
        {"HTTP/1.1 103 Early\r\n\r\n", LOAD_MORE, 0, false},
        {OK_HEAD "\r\nto the end", LOAD_MORE, 200, true},
        {OK_HEAD "Server: half", LOAD_MORE, 200, false},
        {"HTTP/1.1 200", LOAD_MORE, 0, false},
    };
    struct load_reply *reply = malloc(sizeof *reply);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t size = strlen(cases[i].text);
        for (size_t step = 1; step <= size; step++) {
            assert_int_equal(take_reply(reply, cases[i].text, size, step),
                             cases[i].progress);
            assert_int_equal(reply->status, cases[i].status);
            assert_int_equal(reply->close, cases[i].close);
        }
    }
    free(reply);
}

static void test_what_is_not_a_reply_is_wrong(void **state) {
    (void)state;
    static const char *const cases[] = {
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "HTTP/1.1 099 a\r\n\r\n",
        "HTTP/1.1 2000\r\n\r\n",
        "HTTP/1.1 -20\r\n\r\n",
        OK_HEAD "Content-Length: -1\r\n\r\n",
        OK_HEAD "Content-Length: 1x\r\n\r\na",
        OK_HEAD "Content-Length: 9999999999999999\r\n\r\n",
        OK_HEAD "Content-Length: 1\r\n\r\nab",
        OK_HEAD "Transfer-Encoding: chunked\r\n\r\nx\r\n",
        OK_HEAD "Transfer-Encoding: chunked\r\n\r\n\r\n",
        OK_HEAD "Transfer-Encoding: chunked\r\n\r\n1\r\nab",
        OK_HEAD "Transfer-Encoding: chunked\r\n\r\n1111111111111111\r\n",
        OK_HEAD "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nx",
        OK_HEAD "Transfer-Encoding: chunked\r\n\r\n1\r\na\rb\n",
    };
    struct load_reply *reply = malloc(sizeof *reply);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(take_reply(reply, cases[i], strlen(cases[i]), strlen(cases[i])),
                         LOAD_WRONG);

    char *head = malloc(LOAD_HEAD_MAX + 1);
    memset(head, 'a', LOAD_HEAD_MAX + 1);
    assert_int_equal(take_reply(reply, head, LOAD_HEAD_MAX - 1, 1000), LOAD_MORE);
    assert_int_equal(take_reply(reply, head, LOAD_HEAD_MAX + 1, 1000), LOAD_WRONG);
    free(head);
    free(reply);
}

/* --- reports --- */

/* Returns what is printed of a step of 4 s; the caller frees it. */
static char *print_step(double rate, int64_t cpu_ns) {
    const struct load_plan plan = {
        .rate = rate, .connections = 1, .window_ns = 4000000000};
    struct load_tally *tally = calloc(1, sizeof *tally);
    FILE *out = stdout;
    char *text = NULL;
    size_t size;

    assert_non_null(tally);
    tally->cpu_ns = cpu_ns;
    stdout = open_memstream(&text, &size);
    load_report_text(&plan, tally);
    fclose(stdout);
    stdout = out;
    free(tally);
    return text;
}

static void test_generator_that_has_no_cpu_left_says_so(void **state) {
    (void)state;
    static const struct {
        double rate;
        int64_t cpu_ns;
        const char *words; /* NULL: nothing is said */
    } cases[] = {
        {0, 3900000000, "the generator itself was the limit: it used 0.97 CPUs"},
        {9, 3900000000, "it sent 99% within 0.000 ms of the due moment, and used 0.97"},
        {0, 3000000000, NULL},
        {9, 3000000000, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = print_step(cases[i].rate, cases[i].cpu_ns);
        const char *words = cases[i].words != NULL ? cases[i].words : "generator";
        assert_int_equal(strstr(text, words) != NULL, cases[i].words != NULL);
        free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles_are_those_of_a_sort_to_three_digits),
        cmocka_unit_test(test_values_at_the_ends_have_a_bucket),
        cmocka_unit_test(test_span_has_as_many_moments_as_its_rate_makes),
        cmocka_unit_test(test_random_moments_are_uniform),
        cmocka_unit_test(test_seed_decides_the_arrivals),
        cmocka_unit_test(test_constant_arrivals_have_equal_gaps),
        cmocka_unit_test(test_url_is_split),
        cmocka_unit_test(test_wrong_url_says_what_to_write),
        cmocka_unit_test(test_end_of_a_reply_is_found_however_it_arrives),
        cmocka_unit_test(test_what_is_not_a_reply_is_wrong),
        cmocka_unit_test(test_generator_that_has_no_cpu_left_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
