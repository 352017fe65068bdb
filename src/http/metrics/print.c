/* SPDX-License-Identifier: Apache-2.0 */
/* print.c: GET /metrics, on the HTTP thread: no worker delays it.
 *
 * docs/operate.md says what each metric is good for. */
#include "base/log.h"
#include "captures/store.h"
#include "http/metrics/metrics.h"
#include "http/net/secrets.h"
#include "http/reply.h"
#include "obs/process.h"
#include "obs/text.h"

#include <math.h>
#include <stdio.h>

/* The label of requests about no loaded model, or of no route. No model has this name. */
#define NONE "(none)"

/* A family that is one sample without labels. */
struct single {
    const char *name;
    enum obs_type type;
    const char *help;
    double value; /* NAN: it is left out */
};

static void print_singles(struct obs_text *text, const struct single *singles,
                          size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (isnan(singles[i].value))
            continue;
        obs_text_family(text, singles[i].name, singles[i].type, singles[i].help);
        obs_text_value(text, NULL, 0, singles[i].value);
    }
}

/* Writes a sample with one label. */
static void print_labelled(struct obs_text *text, const char *name, const char *value,
                           double number) {
    const struct obs_label label = {name, value};
    obs_text_value(text, &label, 1, number);
}

static const char *label_of_route(const struct route_table *table, size_t index) {
    return index < table->count ? table->routes[index].path : NONE;
}

/* --- requests --- */

/* Writes the samples of one model, or of none: those that are not 0. */
static void print_counts(struct obs_text *text, const struct route_table *table,
                         const char *model, const struct request_counts *counts) {
    char status[12];
    struct obs_label labels[] = {{"route", NULL}, {"model", model}, {"status", status}};

    for (size_t route = 0; route <= REQUEST_ROUTES_MAX; route++) {
        labels[0].value = label_of_route(table, route);
        for (size_t i = 0; request_status_at(i) != 0; i++) {
            uint64_t count = obs_get(&counts->counts[route][i]);
            if (count == 0)
                continue;
            snprintf(status, sizeof status, "%d", request_status_at(i));
            obs_text_value(text, labels, 3, (double)count);
        }
    }
}

static void print_requests(struct obs_text *text, const struct http_thread *thread,
                           const struct generation *generation) {
    const struct metrics *metrics = thread->metrics;
    struct request_counts none = {{{0}}};

    obs_text_family(text, "attnd_requests_total", OBS_COUNTER,
                    "Requests, counted when their reply begins.");
    for (size_t i = 0; i < metrics->num_threads; i++)
        request_counts_sum(&metrics->threads[i].requests, &none);
    print_counts(text, thread->routes, NONE, &none);
    for (size_t i = 0; i < generation->num_models; i++)
        print_counts(text, thread->routes,
                     attn_model_get_info(generation->models[i])->name,
                     &generation->stats[i]->requests);
}

static uint64_t sum_ended(const struct metrics *metrics, enum request_end end) {
    uint64_t sum = 0;
    for (size_t i = 0; i < metrics->num_threads; i++)
        sum += obs_get(&metrics->threads[i].ended[end]);
    return sum;
}

/* Writes what SIGHUP has reloaded, and when the certificate ends. */
static void print_reloads(struct obs_text *text, const struct http_options *options) {
    struct secrets *secrets = options->secrets;
    const struct obs_reloads *reloads[] = {
        &options->models->reloads, &secrets->key_reloads, &secrets->certificate_reloads};
    static const char *const whats[] = {"models", "keys", "certificate"};

    for (int done = 0; done < 2; done++) {
        obs_text_family(text,
                        done ? "attnd_last_reload_success_timestamp_seconds"
                             : "attnd_last_reload_failure_timestamp_seconds",
                        OBS_GAUGE,
                        "When a reload last ended so, in seconds since 1970, or 0.");
        for (size_t i = 0; i < 3; i++)
            print_labelled(text, "what", whats[i],
                           (double)obs_get(&reloads[i]->ended[done]) / 1e6);
    }

    struct tls_certificate *certificate = secrets_acquire_certificate(secrets);
    if (certificate == NULL)
        return;
    obs_text_family(text, "attnd_certificate_expiry_timestamp_seconds", OBS_GAUGE,
                    "When the certificate ends, in seconds since 1970.");
    obs_text_value(text, NULL, 0, (double)tls_certificate_expiry(certificate));
    tls_certificate_release(certificate);
}

static void print_reason(struct obs_text *text, const char *reason, uint64_t value) {
    print_labelled(text, "reason", reason, (double)value);
}

/* Writes why requests got no result, with the reasons that did not occur. */
static void print_reasons(struct obs_text *text, const struct metrics *metrics) {
    obs_text_family(text, "attnd_requests_rejected_total", OBS_COUNTER,
                    "Requests that were refused because of a limit of the server.");
    for (enum wire_error i = 0; i < WIRE_NUM_ERRORS; i++) {
        const char *reason = metrics_refusal_reason(i);
        if (reason != NULL)
            print_reason(text, reason, metrics_sum_errors(metrics, i));
    }

    obs_text_family(text, "attnd_requests_expired_total", OBS_COUNTER,
                    "Requests whose time was over before they had a result.");
    print_reason(text, "deadline", metrics_sum_errors(metrics, WIRE_E_DEADLINE_EXCEEDED));
    print_reason(text, "slow_body", metrics_sum_errors(metrics, WIRE_E_REQUEST_TIMEOUT));

    obs_text_family(text, "attnd_requests_cancelled_total", OBS_COUNTER,
                    "Requests whose connection was closed before their reply was sent.");
    print_reason(text, "receiving", sum_ended(metrics, REQUEST_LEFT_RECEIVING));
    print_reason(text, "waiting", sum_ended(metrics, REQUEST_LEFT_WAITING));
    print_reason(text, "computing", sum_ended(metrics, REQUEST_LEFT_COMPUTING));
    print_reason(text, "sending", sum_ended(metrics, REQUEST_LEFT_SENDING));
}

/* Writes what was done for the keys of each name that has had a request. */
static void print_owners(struct obs_text *text, struct owner *owners) {
    static const struct {
        const char *name, *help;
        size_t offset;
        double unit;
    } families[] = {
        {"attnd_key_requests_total", "Requests with a key of this name.",
         offsetof(struct owner, requests), 1},
        {"attnd_key_requests_rejected_total",
         "Those that were refused because of a limit of the server.",
         offsetof(struct owner, rejected), 1},
        {"attnd_key_busy_seconds_total", "What they took of workers.",
         offsetof(struct owner, busy_ns), 1e-9},
        {"attnd_key_received_bytes_total", "Bytes of their bodies.",
         offsetof(struct owner, received), 1},
        {"attnd_key_sent_bytes_total", "Bytes of their replies.",
         offsetof(struct owner, sent), 1},
    };
    for (size_t i = 0; owners != NULL && i < sizeof families / sizeof families[0]; i++) {
        obs_text_family(text, families[i].name, OBS_COUNTER, families[i].help);
        for (const struct owner *each = owners; each != NULL; each = each->next) {
            const char *counter = (const char *)each + families[i].offset;
            print_labelled(text, "key", each->name,
                           (double)obs_get((const obs_counter *)counter) *
                               families[i].unit);
        }
    }
}

/* Writes what is known of captures; their names are nobody's business. */
static void print_captures(struct obs_text *text, struct captures *captures) {
    static const char *const removals[CAPTURE_NUM_REMOVALS] = {
        [CAPTURE_REMOVED_DELETED] = "deleted",
        [CAPTURE_REMOVED_EXPIRED] = "expired",
        [CAPTURE_REMOVED_KEY] = "key",
        [CAPTURE_REMOVED_ROOM] = "room"};
    static const char *const refusals[] = {"full", "large",  "busy",
                                           "slow", "exists", "invalid"};
    static const int reasons[WIRE_NUM_ERRORS] = {
        [WIRE_E_CAPTURES_FULL] = 1,     [WIRE_E_OUT_OF_MEMORY] = 1,
        [WIRE_E_REQUEST_TOO_LARGE] = 1, [WIRE_E_CAPTURE_TOO_LARGE] = 2,
        [WIRE_E_TOO_MANY_REQUESTS] = 3, [WIRE_E_REQUEST_TIMEOUT] = 4,
        [WIRE_E_CAPTURE_EXISTS] = 5}; /* all others: 6 */
    const struct capture_stats stats = captures_get_stats(captures);
    uint64_t counts[sizeof refusals / sizeof refusals[0]] = {0};
    const struct single singles[] = {
        {"attnd_captures", OBS_GAUGE, "Captures that are kept.", (double)stats.captures},
        {"attnd_capture_bytes", OBS_GAUGE, "What captures and PUTs count of the limit.",
         (double)stats.bytes},
        {"attnd_capture_limit_bytes", OBS_GAUGE, "--capture-memory.",
         (double)stats.limit},
    };

    print_singles(text, singles, sizeof singles / sizeof singles[0]);
    obs_text_family(text, "attnd_capture_lookups_total", OBS_COUNTER,
                    "Requests for the attention of a capture.");
    print_labelled(text, "result", "found", (double)stats.found);
    print_labelled(text, "result", "unknown", (double)stats.unknown);
    obs_text_family(text, "attnd_capture_removals_total", OBS_COUNTER,
                    "Captures that are kept no more.");
    for (size_t i = 0; i < CAPTURE_NUM_REMOVALS; i++)
        print_reason(text, removals[i], stats.removals[i]);
    obs_text_family(text, "attnd_capture_refusals_total", OBS_COUNTER,
                    "PUTs of captures that were refused.");
    for (size_t i = 0; i < WIRE_NUM_ERRORS; i++)
        counts[reasons[i] > 0 ? reasons[i] - 1 : 5] += stats.refusals[i];
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        print_reason(text, refusals[i], counts[i]);
}

/* Returns how many requests have begun and not ended. Another thread may have counted the
 * end of one whose begin is not seen yet. */
static double find_in_flight(const struct metrics *metrics) {
    uint64_t ended = 0, begun = 0;
    for (enum request_end end = 0; end < REQUEST_NUM_ENDS; end++)
        ended += sum_ended(metrics, end);
    for (size_t i = 0; i < metrics->num_threads; i++)
        begun += obs_get(&metrics->threads[i].begun);
    return begun > ended ? (double)(begun - ended) : 0;
}

/* --- histograms --- */

/* Writes one histogram of every route that has one. */
static void print_histogram(struct obs_text *text, const struct http_thread *thread,
                            enum metrics_histogram histogram) {
    const struct route_table *table = thread->routes;
    const struct metrics *metrics = thread->metrics;
    const struct metrics_family *family = &metrics_families[histogram];

    obs_text_family(text, family->name, OBS_HISTOGRAM, family->help);
    for (size_t route = 0; route <= REQUEST_ROUTES_MAX; route++) {
        const struct obs_label label = {"route", label_of_route(table, route)};
        struct obs_histogram total = {{0}, 0};
        for (size_t i = 0; i < metrics->num_threads; i++)
            obs_histogram_add(&metrics->threads[i].histograms[route][histogram], &total);
        if (obs_histogram_values(&total) > 0)
            obs_text_histogram(text, &label, family->scale, &total);
    }
}

/* --- the present --- */

static void print_present(struct obs_text *text, struct exchange *exchange) {
    const struct metrics *metrics = exchange->thread->metrics;
    const struct http_options *options = exchange->options;
    const struct connection_limits *limits = exchange->thread->main_limits;
    const struct sched_load load = sched_get_load(options->pool);
    const struct obs_process process = obs_process_read();

    const struct single singles[] = {
        {"attnd_requests_in_flight", OBS_GAUGE, "Requests that have not ended.",
         find_in_flight(metrics)},
        {"attnd_jobs_queued", OBS_GAUGE, "Jobs that wait for a worker.",
         (double)load.num_queued},
        {"attnd_jobs_queued_limit", OBS_GAUGE, "Jobs that may wait: --queue.",
         (double)load.num_slots},
        {"attnd_queue_delay_seconds", OBS_GAUGE,
         "Estimated time until all present work is done.", (double)load.delay / 1e9},
        {"attnd_queue_delay_limit_seconds", OBS_GAUGE, "As --max-queue-delay sets it.",
         (double)load.max_delay / 1e9},
        {"attnd_workers", OBS_GAUGE, "Workers.", (double)load.num_workers},
        {"attnd_workers_busy", OBS_GAUGE, "Workers that have a job, or help with one.",
         (double)load.num_busy},
        {"attnd_memory_reserved_bytes", OBS_GAUGE,
         "What requests and connections have reserved of the limit.",
         (double)atomic_load(&options->budget->used)},
        {"attnd_memory_limit_bytes", OBS_GAUGE,
         "--max-memory, without what idle workers keep.", (double)options->budget->limit},
        {"attnd_connections", OBS_GAUGE, "Open connections.",
         (double)atomic_load(&limits->num_connections)},
        {"attnd_connections_limit", OBS_GAUGE,
         "--max-connections, or fewer when descriptors or memory allow fewer.",
         (double)limits->max_connections},
        {"attnd_log_lines_dropped_total", OBS_COUNTER,
         "Log lines that standard error did not take.", (double)log_num_dropped()},
        {"process_start_time_seconds", OBS_GAUGE, "Start, in seconds since 1970.",
         metrics->start},
        {"process_cpu_seconds_total", OBS_COUNTER, "CPU time, of user and system.",
         process.cpu},
        {"process_resident_memory_bytes", OBS_GAUGE, "Resident memory.",
         process.resident},
        {"process_open_fds", OBS_GAUGE, "Open descriptors.", process.open_fds},
        {"process_max_fds", OBS_GAUGE, "Descriptors that may be open.", process.max_fds},
    };
    print_singles(text, singles, sizeof singles / sizeof singles[0]);
}

/* --- models --- */

static void print_model_series(struct obs_text *text,
                               const struct generation *generation) {
    static const struct {
        const char *name, *help;
        size_t num_labels;
    } families[] = {
        {"attnd_model_memory_bytes", "Memory that a model holds.", 1},
        {"attnd_model_engine_difference_ratio",
         "How much the outputs of two engines differed when the model was loaded, "
         "relative to the largest.",
         1},
        {"attnd_model_info", "What a model is, and what computes it; the value is 1.",
         7}};

    obs_text_family(text, "attnd_models", OBS_GAUGE, "Models that are served.");
    obs_text_value(text, NULL, 0, (double)generation->num_models);

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        obs_text_family(text, families[f].name, OBS_GAUGE, families[f].help);
        for (size_t i = 0; i < generation->num_models; i++) {
            const attn_model_info *info = attn_model_get_info(generation->models[i]);
            char loaded[24];
            snprintf(loaded, sizeof loaded, "%lld", info->loaded);
            const struct obs_label labels[] = {{"model", info->name},
                                               {"layout", info->layout},
                                               {"engine", info->engine.name},
                                               {"cpu", info->engine.cpu},
                                               {"precision", info->engine.precision},
                                               {"fingerprint", info->fingerprint},
                                               {"loaded", loaded}};
            const double values[] = {(double)info->footprint.memory,
                                     info->engine.difference, 1};
            obs_text_value(text, labels, families[f].num_labels, values[f]);
        }
    }
}

static void print_build(struct obs_text *text, const struct http_options *options) {
    char version[80];

    snprintf(version, sizeof version, ATTND_VERSION "%s",
             options->commit != NULL ? options->commit : "");
    obs_text_family(text, "attnd_build_info", OBS_GAUGE,
                    "What attnd --version prints; the value is 1.");
    print_labelled(text, "version", version, 1);
}

static void print_metrics(void *context, struct buf *body) {
    struct exchange *exchange = context;
    const struct metrics *metrics = exchange->thread->metrics;
    struct obs_text text = {.body = body};

    print_build(&text, exchange->options);
    print_present(&text, exchange);
    print_model_series(&text, exchange->generation);
    print_reloads(&text, exchange->options);
    print_requests(&text, exchange->thread, exchange->generation);
    print_reasons(&text, metrics);
    print_owners(&text, client_list_owners(&exchange->thread->main_limits->clients));
    print_captures(&text, exchange->options->captures);
    for (enum metrics_histogram i = 0; i < METRICS_NUM_HISTOGRAMS; i++)
        print_histogram(&text, exchange->thread, i);
}

bool metrics_handle(struct exchange *exchange, struct wire_problem *ret_problem) {
    bool is_admin = exchange->thread->address == ROUTE_AT_ADMIN;
    return reply_set_shared(exchange, GENERATION_METRICS,
                            is_admin ? 0 : GENERATION_RECENT_NS, print_metrics, exchange,
                            OBS_TEXT_MEDIA_TYPE, ret_problem);
}
