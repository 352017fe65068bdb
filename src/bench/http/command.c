/* SPDX-License-Identifier: Apache-2.0 */
/* command.c: the options of attnd-bench http, and its steps. */
#include "bench/http/command.h"

#include "base/error.h"
#include "base/output.h"
#include "bench/http/address.h"
#include "bench/http/plot.h"
#include "bench/http/steps.h"
#include "config/help.h"
#include "config/read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define EXIT_USAGE   2
#define FILES_OTHER  64 /* open besides those of connections */
#define OUTPUT_BYTES ((size_t)16 << 30)

struct load_config {
    char *requests, *rate, *closed, *source, *plot, *samples;
    struct config_texts headers;
    int arrivals;
    size_t connections, seconds, warmup, timeout_ms, seed;
    bool fresh, json, help;
};

/* A run, besides its options. */
struct load_run {
    const char *url_text;
    struct load_url url;
    struct load_address address;
    struct load_requests requests;
    double steps[LOAD_STEPS_MAX];
    size_t num_steps;
    struct load_plan plan;
    struct load_point points[LOAD_STEPS_MAX]; /* [num_done] */
    size_t num_done;
    struct buf samples;
};

static const char *const arrivals[] = {"poisson", "constant", NULL};

#define OPTION(text, type, member)                                                       \
    .name = (text), .kind = OPTION_##type, .offset = offsetof(struct load_config, member)

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
     .help = "Gaps of the open loop: random ones, as many independent clients make, or "
             "equal ones."},
    {OPTION("connections", COUNT, connections), .value = "256", .min = 1,
     .max = LOAD_CLIENTS_MAX, .metavar = "N",
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
    {OPTION("plot", TEXT, plot), .metavar = "FILE",
     .help = "Create an SVG: percentiles over throughput, a point for each step, hollow "
             "where requests were not served, or sent twice."},
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
    "URL is http://HOST[:PORT][/PATH], or unix:SOCKET. Latency is counted from the "
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

/* Checks what a single option cannot tell, and fills the plan and the steps. */
static attn_status prepare_plan(const struct load_config *config, struct load_run *run,
                                attn_error *ret_error) {
    struct load_plan *plan = &run->plan;
    bool open = config->rate != NULL;
    double clients_max = 0;

    if (open && config->closed != NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--rate and --closed are two kinds of load; leave one out");
    attn_status status =
        open ? load_steps_parse("rate", config->rate, LOAD_RATE_MAX, false, run->steps,
                                &run->num_steps, ret_error)
             : load_steps_parse("closed", config->closed != NULL ? config->closed : "1",
                                LOAD_CLIENTS_MAX, true, run->steps, &run->num_steps,
                                ret_error);
    if (status != ATTN_OK)
        return status;

    *plan = (struct load_plan){
        .address = &run->address,
        .requests = &run->requests,
        .poisson = config->arrivals == 0,
        .connections = config->connections,
        .fresh = config->fresh,
        .warmup_ns = (int64_t)config->warmup * 1000000000,
        .window_ns = (int64_t)config->seconds * 1000000000,
        .timeout_ns = (int64_t)config->timeout_ms * 1000000,
        .seed = config->seed,
        .keep_samples = config->samples != NULL,
    };
    for (size_t i = 0; i < run->num_steps; i++) {
        double clients = open ? (double)config->connections : run->steps[i];
        clients_max = clients > clients_max ? clients : clients_max;
    }
    for (size_t i = 0; i < config->headers.count; i++) {
        if (!load_header_is_valid(config->headers.items[i]))
            return error_set(ret_error, ATTN_E_VALUE,
                             "--header: '%.64s' is not 'NAME: VALUE' in one line, or "
                             "frames the request, which is done already",
                             config->headers.items[i]);
    }
    return reserve_files((size_t)clients_max, ret_error);
}

static attn_status prepare_run(const struct load_config *config, struct load_run *run,
                               attn_error *ret_error) {
    attn_status status = load_url_parse(run->url_text, &run->url, ret_error);

    if (status == ATTN_OK)
        status = prepare_plan(config, run, ret_error);
    if (status == ATTN_OK && config->plot != NULL && config->samples != NULL &&
        strcmp(config->plot, config->samples) == 0)
        status = error_set(ret_error, ATTN_E_VALUE,
                           "--plot and --samples name one file; they need two");
    if (status == ATTN_OK && config->plot != NULL)
        status = output_check_new(config->plot, ret_error);
    if (status == ATTN_OK && config->samples != NULL)
        status = output_check_new(config->samples, ret_error);
    if (status == ATTN_OK)
        status = load_requests_read(
            config->requests,
            &(struct load_defaults){.url = &run->url, .headers = &config->headers},
            &run->requests, ret_error);
    if (status == ATTN_OK)
        status = load_address_find(&run->url, config->source, &run->address, ret_error);
    return status;
}

static attn_status run_step(const struct load_config *config, struct load_run *run,
                            attn_error *ret_error) {
    size_t index = run->num_done;
    struct load_plan *plan = &run->plan;
    struct load_point *point = &run->points[index];
    struct load_tally *tally = calloc(1, sizeof *tally);

    if (tally == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    if (config->rate != NULL)
        plan->rate = run->steps[index];
    else
        plan->connections = (size_t)run->steps[index];
    if (index == 0 && !config->json)
        load_report_head(plan, run->url_text);

    attn_status status = load_run_step(plan, tally, ret_error);
    if (status == ATTN_OK) {
        if (config->json)
            load_report_json(plan, tally);
        else
            load_report_text(plan, tally);
        if (config->samples != NULL)
            load_report_samples(tally, index, &run->samples);
        load_report_quantiles(&tally->latency, point->ms);
        point->served = (double)tally->served / (double)config->seconds;
        point->clean = load_report_is_clean(tally);
        run->num_done++;
    }
    free(tally->samples);
    free(tally);
    return status;
}

/* Creates a file with what `text` has, whose owner is the caller. */
static attn_status create_file(const char *path, const struct buf *text,
                               attn_error *ret_error) {
    if (text->status != ATTN_OK)
        return error_set(ret_error, ATTN_E_NOMEM, "%.200s: out of memory", path);
    return output_create_file(path, text->data, text->size, ret_error);
}

/* Creates the files of the steps that were done. */
static attn_status create_files(const struct load_config *config,
                                const struct load_run *run, attn_error *ret_error) {
    attn_status status = ATTN_OK;
    struct buf svg;

    if (config->samples != NULL)
        status = create_file(config->samples, &run->samples, ret_error);
    if (status != ATTN_OK || config->plot == NULL)
        return status;
    buf_init(&svg, OUTPUT_BYTES);
    load_plot(run->points, run->num_done, run->url_text, &svg);
    status = create_file(config->plot, &svg, ret_error);
    buf_deinit(&svg);
    return status;
}

static int run_load(const struct load_config *config, const char *url) {
    static struct load_run run; /* too large for a stack */
    attn_error error, later_error;

    run = (struct load_run){.url_text = url};
    buf_init(&run.samples, OUTPUT_BYTES);
    attn_status status = prepare_run(config, &run, &error);
    while (status == ATTN_OK && run.num_done < run.num_steps)
        status = run_step(config, &run, &error);
    if (run.num_done > 0) { /* also those before a step that failed */
        attn_status created =
            create_files(config, &run, status == ATTN_OK ? &error : &later_error);
        status = status == ATTN_OK ? created : status;
    }
    load_requests_deinit(&run.requests);
    buf_deinit(&run.samples);
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
