/* SPDX-License-Identifier: Apache-2.0 */
/* report.c: what is printed about each step. */
#include "bench/http/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MS      1e-6    /* of a ns */
#define LATE_NS 200000U /* what waking up may take */

const unsigned load_shares[LOAD_QUANTILES] = {5000, 9000, 9900, 9990, 9999};
const char *const load_share_names[LOAD_QUANTILES] = {"50", "90", "99", "99.9", "99.99"};

void load_report_quantiles(const struct load_histogram *latency,
                           double ret_ms[LOAD_QUANTILES]) {
    for (size_t i = 0; i < LOAD_QUANTILES; i++)
        ret_ms[i] = latency->total * (10000 - load_shares[i]) < 10000
                        ? (double)NAN
                        : (double)load_histogram_quantile(latency, load_shares[i]) * MS;
}

static uint64_t count_served(const struct load_tally *tally) {
    return tally->latency.total;
}

static uint64_t count_all(const struct load_tally *tally) {
    uint64_t count = tally->timed_out + tally->misread + tally->lost;
    for (size_t i = 0; i <= LOAD_STATUS_MAX; i++)
        count += tally->statuses[i];
    return count;
}

bool load_report_is_clean(const struct load_tally *tally) {
    return tally->resent == 0 && count_all(tally) == count_served(tally);
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

void load_report_head(const struct load_plan *plan, const char *url) {
    printf("%s: %s loop, ", url,
           plan->rate == 0 ? "closed"
                           : (plan->poisson ? "open (poisson)" : "open (constant)"));
    if (plan->rate > 0)
        printf("at most %zu connections, ", plan->connections);
    printf("%.0f s a step after %.0f s of warm-up; latencies in ms\n",
           (double)plan->window_ns * 1e-9, (double)plan->warmup_ns * 1e-9);
    printf("%10s %10s", plan->rate > 0 ? "rate/s" : "clients", "served/s");
    for (size_t i = 0; i < LOAD_QUANTILES; i++)
        printf(" %8s%%", load_share_names[i]);
    printf(" %9s\n", "max");
}

/* Prints a share of the requests that were not served, after `separator`. */
static const char *print_count(const char *separator, uint64_t count, const char *what) {
    if (count == 0)
        return separator;
    printf("%s%llu %s", separator, (unsigned long long)count, what);
    return ", ";
}

static void print_failures(const struct load_tally *tally) {
    char status[16];
    const char *separator = "           not served: ";

    for (size_t i = 0; i <= LOAD_STATUS_MAX; i++) {
        snprintf(status, sizeof status, "x %zu", i);
        if (!load_is_served((int)i))
            separator = print_count(separator, tally->statuses[i], status);
    }
    separator = print_count(separator, tally->timed_out, "timed out");
    separator = print_count(separator, tally->misread, "replies not understood");
    print_count(separator, tally->lost, "connections lost");
    if (tally->lost > 0)
        printf(" (%s)", tally->lost_errno != 0 ? strerror(tally->lost_errno)
                                               : "closed by the server");
    printf("; of %llu\n", (unsigned long long)count_all(tally));
}

void load_report_text(const struct load_plan *plan, const struct load_tally *tally) {
    double ms[LOAD_QUANTILES];

    load_report_quantiles(&tally->latency, ms);
    printf("%10.6g %10.1f", plan->rate > 0 ? plan->rate : (double)plan->connections,
           (double)tally->served / ((double)plan->window_ns * 1e-9));
    for (size_t i = 0; i < LOAD_QUANTILES; i++) {
        if (isnan(ms[i]))
            printf(" %9s", "-");
        else
            printf(" %9.3f", ms[i]);
    }
    if (tally->latency.total == 0)
        printf(" %9s\n", "-");
    else
        printf(" %9.3f\n", (double)tally->latency.max * MS);

    if (count_all(tally) > count_served(tally))
        print_failures(tally);
    if (tally->resent > 0)
        printf("           %llu sent twice, because the server closed the connection "
               "without a reply\n",
               (unsigned long long)tally->resent);
    if (tally->waited > 0)
        printf("           %llu waited for one of the %zu connections\n",
               (unsigned long long)tally->waited, plan->connections);
    if (is_behind(plan, tally) && plan->rate > 0)
        printf("           the generator itself was late: it sent 99%% within %.3f ms of "
               "the due moment, and used %.2f CPUs; leave it a core\n",
               (double)find_lateness(tally) * MS, count_cpus(plan, tally));
    else if (is_behind(plan, tally))
        printf("           the generator itself was the limit: it used %.2f CPUs; leave "
               "it a core, or run several\n",
               count_cpus(plan, tally));
    fflush(stdout);
}

/* --- for programs --- */

static void print_json_latency(const struct load_tally *tally) {
    const struct load_histogram *latency = &tally->latency;
    double ms[LOAD_QUANTILES];

    load_report_quantiles(latency, ms);
    printf("\"latency_ms\":{");
    for (size_t i = 0; i < LOAD_QUANTILES; i++) {
        if (isnan(ms[i]))
            printf("\"p%s\":null,", load_share_names[i]);
        else
            printf("\"p%s\":%.6f,", load_share_names[i], ms[i]);
    }
    if (latency->total == 0)
        printf("\"mean\":null,\"max\":null},");
    else
        printf("\"mean\":%.6f,\"max\":%.6f},", latency->sum / (double)latency->total * MS,
               (double)latency->max * MS);
}

void load_report_json(const struct load_plan *plan, const struct load_tally *tally) {
    double seconds = (double)plan->window_ns * 1e-9;
    const char *separator = "";

    if (plan->rate > 0)
        printf(
            "{\"loop\":\"open\",\"arrivals\":\"%s\",\"rate\":%.9g,\"connections\":%zu,",
            plan->poisson ? "poisson" : "constant", plan->rate, plan->connections);
    else
        printf("{\"loop\":\"closed\",\"clients\":%zu,", plan->connections);
    printf("\"seconds\":%.9g,\"warmup\":%.9g,\"requests\":%llu,"
           "\"served\":%llu,\"served_per_s\":%.3f,\"statuses\":{",
           seconds, (double)plan->warmup_ns * 1e-9, (unsigned long long)count_all(tally),
           (unsigned long long)count_served(tally), (double)tally->served / seconds);
    for (size_t i = 0; i <= LOAD_STATUS_MAX; i++) {
        if (tally->statuses[i] == 0)
            continue;
        printf("%s\"%zu\":%llu", separator, i, (unsigned long long)tally->statuses[i]);
        separator = ",";
    }

    printf("},\"timed_out\":%llu,\"misread\":%llu,\"lost\":%llu,\"resent\":%llu,",
           (unsigned long long)tally->timed_out, (unsigned long long)tally->misread,
           (unsigned long long)tally->lost, (unsigned long long)tally->resent);
    print_json_latency(tally);
    printf("\"generator\":{\"cpus\":%.4f,\"late_p99_ms\":%.6f,\"late_max_ms\":%.6f,"
           "\"waited\":%llu,\"behind\":%s}}\n",
           count_cpus(plan, tally), (double)find_lateness(tally) * MS,
           (double)tally->lateness.max * MS, (unsigned long long)tally->waited,
           is_behind(plan, tally) ? "true" : "false");
    fflush(stdout);
}

void load_report_samples(const struct load_tally *tally, size_t index, struct buf *csv) {
    if (index == 0)
        buf_append_text(csv, "step,request,end_s,latency_ms,outcome\n");
    for (size_t i = 0; i < tally->num_samples; i++) {
        const struct load_sample *sample = &tally->samples[i];
        buf_append_format(csv, "%zu,%u,%.6f,%.6f,", index, sample->request,
                          (double)sample->end_ns * 1e-9, (double)sample->latency_ns * MS);
        if (sample->outcome > 0)
            buf_append_format(csv, "%d\n", (int)sample->outcome);
        else
            buf_append_text(csv, sample->outcome == LOAD_TIMED_OUT ? "timed out\n"
                                 : sample->outcome == LOAD_MISREAD ? "misread\n"
                                                                   : "lost\n");
    }
}
