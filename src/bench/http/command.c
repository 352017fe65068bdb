/* SPDX-License-Identifier: Apache-2.0 */
/* command.c: the options of attnd-bench http, and its steps. */
#include "bench/http/command.h"

#include "base/error.h"
#include "base/size.h"
#include "bench/http/report.h"
#include "bench/http/target.h"
#include "config/help.h"
#include "config/read.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define STEPS_MAX   100
#define RATE_MAX    1e6
#define CLIENTS_MAX 65536
#define FILES_OTHER 64 /* open besides those of connections */

struct load_config {
    char *requests, *rate, *closed, *source, *samples;
    struct config_texts headers;
    int arrivals;
    size_t connections, seconds, warmup, timeout_ms, seed;
    bool fresh, json, help;
};

/* A run, besides its options. */
struct load_run {
    const char *url;
    struct load_target target;
    struct load_requests requests;
    double steps[STEPS_MAX]; /* rates, or numbers of clients */
    size_t num_steps;
    struct load_plan plan;
};

static const char *const arrivals[] = {"poisson", "constant", NULL};

#define OPTION(text, type, member) OPTION_OF(struct load_config, text, type, member)

static const struct option options[] = {
    {OPTION("requests", TEXT, requests), .metavar = "FILE",
     .help =
         "What to send: JSON objects, one in a line, with path, body or body_file, "
         "content_type, headers, method and weight. Each request is chosen at random, by "
         "weight. Without a file, GET of the URL's path is sent."},
    {OPTION("rate", TEXT, rate), .metavar = "N[,N]...",
     .help =
         "Open loop: requests a second, sent whether or not there are replies. Several "
         "rates are measured one after the other."},
    {OPTION("closed", TEXT, closed), .metavar = "N[,N]...",
     .help = "Closed loop: so many clients, each of which sends its next request when it "
             "has the last reply, or 0.1 s after a failure. The default is 1 client."},
    {OPTION("arrivals", CHOICE, arrivals), .value = "poisson",
     .metavar = "poisson|constant", .choices = arrivals,
     .help =
         "Moments of the open loop, as many as the rate makes: drawn at random, as many "
         "independent clients make them, or at equal gaps."},
    {OPTION("connections", COUNT, connections), .value = "256", .min = 1,
     .max = CLIENTS_MAX, .metavar = "N",
     .help =
         "Connections of the open loop, at most. A request that finds none free waits, "
         "and its latency counts that."},
    {OPTION("fresh", FLAG, fresh), .help = "Open a connection for each request."},
    {OPTION("seconds", COUNT, seconds), .value = "10", .min = 1, .max = 86400,
     .metavar = "N", .help = "Time that is measured, for each step."},
    {OPTION("warmup", COUNT, warmup), .value = "2", .max = 3600, .metavar = "N",
     .help = "Seconds of the same load before that, which are not counted."},
    {OPTION("timeout-ms", COUNT, timeout_ms), .value = "10000", .min = 1, .max = 3600000,
     .metavar = "N",
     .help =
         "How long a client waits for the whole reply, once it has sent its request."},
    {OPTION("header", TEXTS, headers), .metavar = "'NAME: VALUE'",
     .help = "A header of all requests. May be repeated. Other users of the machine can "
             "read a command line, so a secret belongs into the headers of the file."},
    {OPTION("source", TEXT, source), .metavar = "ADDRESS",
     .help = "The address of this machine to send from."},
    {OPTION("seed", COUNT, seed), .value = "1", .max = SIZE_MAX, .metavar = "N",
     .help = "Seed of the arrivals and of the order of requests."},
    {OPTION("samples", TEXT, samples), .metavar = "FILE",
     .help =
         "Create a CSV file with each measured request: its step, its place in the file "
         "of requests (from 0), when it ended, its latency, and its status."},
    {OPTION("json", FLAG, json), .help = "Print one JSON object for each step."},
    {OPTION("help", FLAG, help), .help = "Print this help and exit.", .letter = 'h'},
};

static const struct option_set option_set = {
    .program = "attnd-bench http",
    .own = options,
    .num_own = sizeof options / sizeof options[0],
};

static const char about[] =
    "URL is http://HOST:PORT[/PATH], or unix:SOCKET. Latency is counted from the "
    "moment when a request was due, so neither a server that stalls nor this program, "
    "when it is late, hides how long clients would wait. Percentiles are those of "
    "replies with a status from 200 to 299, exact to three digits; \"-\" means too few "
    "replies. Look first at what was not served. docs/load-testing.md has a guide.";

static int report_failure(const char *text, int exit_code) {
    fprintf(stderr, "attnd-bench http: %s\n", text);
    return exit_code;
}

static void print_http_help(void) {
    printf("attnd-bench http: puts load on a server, and measures it\n\n"
           "Usage: attnd-bench http URL [OPTION]...\n\n");
    help_print_indented(about, 0);
    printf("\nOptions:\n");
    help_print_options(&option_set);
}

/* Raises the limit of open files to what the connections need. */
static attn_status reserve_files(size_t connections, attn_error *ret_error) {
    struct rlimit limit;
    rlim_t needed = connections + FILES_OTHER;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return ATTN_OK;
    limit.rlim_cur = needed;
    if (needed <= limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "%zu connections need more open files than this process may have, "
                     "%llu; use fewer, or raise the limit (ulimit -Hn)",
                     connections, (unsigned long long)limit.rlim_max);
}

/* Parses N[,N]..., the value of the option `name`: numbers from `min` to `max`. */
static attn_status parse_steps(const char *name, const char *text, double min, double max,
                               bool whole, struct load_run *run, attn_error *ret_error) {
    const char *at = text;
    char *end = NULL;
    bool valid = strspn(text, "0123456789.,") == strlen(text);

    do {
        double step = valid ? strtod(at, &end) : 0;
        valid = valid && run->num_steps < STEPS_MAX && end > at &&
                (*end == ',' || *end == '\0') && step >= min && step <= max &&
                (!whole || step == floor(step));
        if (valid)
            run->steps[run->num_steps++] = step;
        at = valid ? end + 1 : at;
    } while (valid && *end == ',');
    if (valid)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "--%s: '%.100s' is not a list such as 100,200,400: at most %d "
                     "%snumbers from %.2g to %.0f",
                     name, text, STEPS_MAX, whole ? "whole " : "", min, max);
}

/* Checks what a single option cannot tell, and fills the plan and the steps. */
static attn_status prepare_plan(const struct load_config *config, struct load_run *run,
                                attn_error *ret_error) {
    bool open = config->rate != NULL;
    const char *closed = config->closed != NULL ? config->closed : "1";
    size_t clients_max = open ? config->connections : 1;

    if (open && config->closed != NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--rate and --closed are two kinds of load; leave one out");
    /* The least rate sends one request. */
    attn_status status =
        open ? parse_steps("rate", config->rate, 1 / (double)config->seconds, RATE_MAX,
                           false, run, ret_error)
             : parse_steps("closed", closed, 1, CLIENTS_MAX, true, run, ret_error);
    if (status != ATTN_OK)
        return status;

    run->plan = (struct load_plan){
        .target = &run->target,
        .requests = &run->requests,
        .poisson = config->arrivals == 0,
        .connections = config->connections,
        .fresh = config->fresh,
        .warmup_ns = (int64_t)config->warmup * 1000000000,
        .window_ns = (int64_t)config->seconds * 1000000000,
        .timeout_ns = (int64_t)config->timeout_ms * 1000000,
        .seed = config->seed,
    };
    for (size_t i = 0; !open && i < run->num_steps; i++)
        clients_max = size_max(clients_max, (size_t)run->steps[i]);
    for (size_t i = 0; i < config->headers.count; i++) {
        if (!load_header_is_valid(config->headers.items[i]))
            return error_set(ret_error, ATTN_E_VALUE,
                             "--header: '%.64s' is not 'NAME: VALUE' in one line, or "
                             "frames the request, which is done already",
                             config->headers.items[i]);
    }
    return reserve_files(clients_max, ret_error);
}

static attn_status prepare_run(const struct load_config *config, struct load_run *run,
                               attn_error *ret_error) {
    attn_status status = load_target_parse(run->url, &run->target, ret_error);

    if (status == ATTN_OK)
        status = prepare_plan(config, run, ret_error);
    if (status == ATTN_OK)
        status = load_requests_read(config->requests, &run->target, &config->headers,
                                    &run->requests, ret_error);
    if (status == ATTN_OK)
        status = load_target_find(&run->target, config->source, ret_error);
    if (status != ATTN_OK || config->samples == NULL)
        return status;

    run->plan.samples = fopen(config->samples, "wxe");
    if (run->plan.samples == NULL)
        return error_set(ret_error, ATTN_E_VALUE, "--samples: cannot create %.200s: %s",
                         config->samples, strerror(errno));
    fputs("step,request,end_s,latency_ms,outcome\n", run->plan.samples);
    return ATTN_OK;
}

static attn_status run_step(const struct load_config *config, struct load_run *run,
                            attn_error *ret_error) {
    struct load_plan *plan = &run->plan;
    struct load_tally *tally = calloc(1, sizeof *tally);

    if (tally == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    if (config->rate != NULL)
        plan->rate = run->steps[plan->index];
    else
        plan->connections = (size_t)run->steps[plan->index];
    if (plan->index == 0 && !config->json)
        load_report_head(plan, run->url);

    attn_status status = load_run_step(plan, tally, ret_error);
    if (status == ATTN_OK) {
        if (config->json)
            load_report_json(plan, tally);
        else
            load_report_text(plan, tally);
    }
    free(tally);
    return status;
}

static int run_load(const struct load_config *config, const char *url) {
    static struct load_run run; /* too large for a stack */
    struct load_plan *plan = &run.plan;
    attn_error error;

    run = (struct load_run){.url = url};
    attn_status status = prepare_run(config, &run, &error);
    for (; status == ATTN_OK && plan->index < run.num_steps; plan->index++)
        status = run_step(config, &run, &error);
    if (plan->samples != NULL) { /* also those before a step that failed */
        bool failed = ferror(plan->samples) != 0;
        if ((fclose(plan->samples) != 0 || failed) && status == ATTN_OK)
            status = error_set(&error, ATTN_E_IO, "cannot write all of %.200s",
                               config->samples);
    }
    load_requests_deinit(&run.requests);
    if (status == ATTN_OK)
        return 0;
    return report_failure(
        error.text, status == ATTN_E_VALUE || status == ATTN_E_FORMAT ? EXIT_USAGE : 1);
}

int bench_http(int argc, char **argv) {
    struct load_config config = {.arrivals = 0};
    bool has_url = argc > 0 && argv[0][0] != '-';
    attn_error error;
    int exit_code = 0;

    if (option_read_flags(&option_set, argc - has_url, argv + has_url, &config, &error) !=
        ATTN_OK)
        return report_failure(error.text, EXIT_USAGE);
    if (config.help)
        print_http_help();
    else if (!has_url)
        exit_code = report_failure(
            "the URL comes first: attnd-bench http URL [OPTION]...", EXIT_USAGE);
    else
        exit_code = run_load(&config, argv[0]);
    option_deinit(&option_set, &config);
    return exit_code;
}
