/* SPDX-License-Identifier: Apache-2.0 */
/* report.c: what is printed about each step. */
#include "bench/http/report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MS      1e-6    /* of a ns */
#define LATE_NS 200000U /* what waking up may take */

/* The percentiles of a report, as shares of 10,000. */
static const struct {
    const char *name;
    unsigned share;
} quantiles[] = {{"p50", 5000},   {"p90", 9000},    {"p99", 9900},
                 {"p99.9", 9990}, {"p99.99", 9999}, {"max", 10000}};

#define NUM_QUANTILES (sizeof quantiles / sizeof quantiles[0])

/* Prints the latencies, each after its name in JSON. One is unknown where too few replies
 * are for one to be above it. */
static void print_latencies(const struct load_histogram *latency, bool json) {
    for (size_t i = 0; i < NUM_QUANTILES; i++) {
        unsigned share = quantiles[i].share;
        double ms = (double)load_histogram_quantile(latency, share) * MS;
        bool known = share == 10000 ? latency->total > 0
                                    : latency->total * (10000 - share) >= 10000;

        if (json)
            printf("\"%s\":", quantiles[i].name);
        if (known)
            printf(json ? "%.6f," : " %9.3f", ms);
        else
            printf("%s", json ? "null," : "         -");
    }
}

static uint64_t count_all(const struct load_tally *tally) {
    uint64_t count = 0;
    for (size_t i = 0; i < LOAD_OUTCOMES; i++)
        count += tally->outcomes[i];
    return count;
}

/* Returns how many there were in each second of the window. */
static double per_second(const struct load_plan *plan, uint64_t count) {
    return (double)count * 1e9 / (double)plan->window_ns;
}

/* Returns how many CPUs the generator has used. */
static double count_cpus(const struct load_plan *plan, const struct load_tally *tally) {
    return (double)tally->cpu_ns / (double)(plan->warmup_ns + plan->window_ns);
}

/* Returns within how many ns 99% of the requests that found a connection were sent. */
static uint64_t find_lateness(const struct load_tally *tally) {
    return load_histogram_quantile(&tally->lateness, 9900);
}

/* Whether the generator was so late that latencies show it, or used up its CPU. A closed
 * loop has no moments to be late for. */
static bool is_behind(const struct load_plan *plan, const struct load_tally *tally) {
    uint64_t late = find_lateness(tally);
    return count_cpus(plan, tally) > 0.9 ||
           (late > LATE_NS && late * 4 > load_histogram_quantile(&tally->latency, 9900));
}

/* --- for people --- */

#define INDENT "           "

void load_report_head(const struct load_plan *plan, const char *url) {
    printf("%s: %s loop, ", url,
           plan->rate == 0 ? "closed"
           : plan->poisson ? "open (poisson)"
                           : "open (constant)");
    if (plan->rate > 0)
        printf("at most %zu connections, ", plan->connections);
    printf("%.0f s a step after %.0f s of warm-up; latencies in ms\n",
           (double)plan->window_ns * 1e-9, (double)plan->warmup_ns * 1e-9);
    printf("%s %10s", plan->rate > 0 ? "    rate/s     sent/s" : "   clients",
           "served/s");
    for (size_t i = 0; i < NUM_QUANTILES; i++)
        printf(" %9s", quantiles[i].name);
    printf("\n");
}

/* Prints how many requests were not served, after `separator`. Returns the next one. */
static const char *print_count(const char *separator, uint64_t count, const char *what) {
    if (count == 0)
        return separator;
    printf("%s%" PRIu64 " %s", separator, count, what);
    return ", ";
}

static void print_failures(const struct load_tally *tally) {
    const uint64_t *outcomes = tally->outcomes;
    char status[16];
    const char *separator = INDENT "not served: ";

    for (size_t i = LOAD_STATUS_MIN; i < LOAD_OUTCOMES; i++) {
        snprintf(status, sizeof status, "x %zu", i);
        if (!load_is_served((int)i))
            separator = print_count(separator, outcomes[i], status);
    }
    separator = print_count(separator, outcomes[LOAD_TIMED_OUT], "timed out");
    separator = print_count(separator, outcomes[LOAD_MISREAD], "replies not understood");
    print_count(separator, outcomes[LOAD_LOST], "connections lost");
    if (outcomes[LOAD_LOST] > 0)
        printf(" (%s)", tally->lost_errno != 0 ? strerror(tally->lost_errno)
                                               : "closed by the server");
    printf("; of %" PRIu64 "\n", count_all(tally));
}

void load_report_text(const struct load_plan *plan, const struct load_tally *tally) {
    if (plan->rate > 0)
        printf("%10.6g %10.1f", plan->rate, per_second(plan, tally->sent));
    else
        printf("%10zu", plan->connections);
    printf(" %10.1f", per_second(plan, tally->served));
    print_latencies(&tally->latency, false);
    printf("\n");

    if (count_all(tally) > tally->latency.total)
        print_failures(tally);
    if (tally->resent > 0)
        printf(INDENT "%" PRIu64 " sent twice, because the server closed the connection "
                      "without a reply\n",
               tally->resent);
    if (tally->waited > 0)
        printf(INDENT "%" PRIu64 " waited for one of the %zu connections\n",
               tally->waited, plan->connections);
    if (is_behind(plan, tally) && plan->rate > 0)
        printf(INDENT "the generator itself was late: it sent 99%% within %.3f ms of "
                      "the due moment, and used %.2f CPUs; leave it a core\n",
               (double)find_lateness(tally) * MS, count_cpus(plan, tally));
    else if (is_behind(plan, tally))
        printf(INDENT "the generator itself was the limit: it used %.2f CPUs; leave "
                      "it a core, or run several\n",
               count_cpus(plan, tally));
    fflush(stdout);
}

/* --- for programs --- */

void load_report_json(const struct load_plan *plan, const struct load_tally *tally) {
    const uint64_t *outcomes = tally->outcomes, served = tally->latency.total;
    const char *separator = "";

    if (plan->rate > 0)
        printf(
            "{\"loop\":\"open\",\"arrivals\":\"%s\",\"rate\":%.9g,\"connections\":%zu,",
            plan->poisson ? "poisson" : "constant", plan->rate, plan->connections);
    else
        printf("{\"loop\":\"closed\",\"clients\":%zu,", plan->connections);
    printf("\"seconds\":%.9g,\"warmup\":%.9g,\"requests\":%" PRIu64 ",\"served\":%" PRIu64
           ",\"sent_per_s\":%.3f,\"served_per_s\":%.3f,\"statuses\":{",
           (double)plan->window_ns * 1e-9, (double)plan->warmup_ns * 1e-9,
           count_all(tally), served, per_second(plan, tally->sent),
           per_second(plan, tally->served));
    for (size_t i = LOAD_STATUS_MIN; i < LOAD_OUTCOMES; i++) {
        if (outcomes[i] == 0)
            continue;
        printf("%s\"%zu\":%" PRIu64, separator, i, outcomes[i]);
        separator = ",";
    }

    printf("},\"timed_out\":%" PRIu64 ",\"misread\":%" PRIu64 ",\"lost\":%" PRIu64
           ",\"resent\":%" PRIu64 ",\"latency_ms\":{",
           outcomes[LOAD_TIMED_OUT], outcomes[LOAD_MISREAD], outcomes[LOAD_LOST],
           tally->resent);
    print_latencies(&tally->latency, true);
    if (served == 0)
        printf("\"mean\":null},");
    else
        printf("\"mean\":%.6f},", tally->latency.sum / (double)served * MS);
    printf("\"generator\":{\"cpus\":%.4f,\"late_p99_ms\":%.6f,\"late_max_ms\":%.6f,"
           "\"waited\":%" PRIu64 ",\"behind\":%s}}\n",
           count_cpus(plan, tally), (double)find_lateness(tally) * MS,
           (double)tally->lateness.max * MS, tally->waited,
           is_behind(plan, tally) ? "true" : "false");
    fflush(stdout);
}
