/* SPDX-License-Identifier: Apache-2.0 */
/* access.c: prints the facts of a request. */
#include "http/log/access.h"

#include "base/clock.h"
#include "base/log.h"
#include "http/exchange.h"

#include <string.h>

#define FIELDS_MAX 24

static const char *const end_words[] = {
    [REQUEST_REPLIED] = "replied",           [REQUEST_LEFT_RECEIVING] = "left_receiving",
    [REQUEST_LEFT_WAITING] = "left_waiting", [REQUEST_LEFT_COMPUTING] = "left_computing",
    [REQUEST_LEFT_SENDING] = "left_sending",
};

/* Whether a worker had the request, so that its stages took time. */
static bool has_stages(const struct request_facts *facts) {
    return facts->queue_ns != 0 || facts->decode_ns != 0;
}

/* The fields of a line; there is room for all of them. */
struct access_line {
    struct log_field fields[FIELDS_MAX];
    size_t count;
};

/* A text that is NULL or empty has no field. */
static void add_text_field(struct access_line *line, const char *key, const char *text) {
    if (text != NULL && *text != '\0')
        line->fields[line->count++] = LOG_TEXT(key, text);
}

static void add_number_field(struct access_line *line, const char *key,
                             long long number) {
    line->fields[line->count++] = LOG_NUMBER(key, number);
}

static void add_stages(struct access_line *line, const struct request_facts *facts) {
    if (!has_stages(facts))
        return;
    add_number_field(line, "rows", (long long)facts->rows);
    add_number_field(line, "queue_us", facts->queue_ns / 1000);
    add_number_field(line, "decode_us", facts->decode_ns / 1000);
    add_number_field(line, "compute_us", facts->compute_ns / 1000);
    add_number_field(line, "encode_us", facts->encode_ns / 1000);
}

void access_log(const struct exchange *exchange) {
    const struct request_facts *facts = &exchange->record.facts;
    const struct trace *trace = &exchange->record.trace;
    bool always = exchange->options->config->access_log;
    struct access_line line = {.count = 0};
    char client[ADDRESS_PRINT_MAX];

    if (!always && !log_enabled(LOG_DEBUG))
        return;
    address_print(&exchange->memory.client->address, client);
    add_text_field(&line, "id", trace->id);
    add_text_field(&line, "method", exchange->request.method);
    add_text_field(&line, "route",
                   exchange->request.route != NULL ? exchange->request.route->path
                                                   : "(none)");
    add_text_field(&line, "model", facts->model);
    add_text_field(&line, "client", client);
    add_text_field(&line, "key", exchange->request.key_name);
    add_number_field(&line, "status", facts->status);
    if (facts->error != WIRE_NUM_ERRORS)
        add_text_field(&line, "error", wire_error_get(facts->error)->title);
    add_text_field(&line, "end", end_words[facts->end]);
    add_number_field(&line, "body_bytes", (long long)facts->body_bytes);
    add_number_field(&line, "reply_bytes", (long long)facts->reply_bytes);
    add_stages(&line, facts);
    add_number_field(&line, "total_us", facts->total_ns / 1000);
    add_text_field(&line, "trace_id", trace->trace_id);
    add_text_field(&line, "span_id", trace->span_id);
    log_always(always ? LOG_INFO : LOG_DEBUG, "request", line.fields, line.count);
}

/* Adds "NAME;dur=MS"; by hand, since five of snprintf() would take a microsecond. Returns
 * the end. */
static char *put_duration(char *out, const char *name, int64_t ns) {
    char digits[24];
    size_t count = 0;
    uint64_t us = ns > 0 ? (uint64_t)ns / 1000 : 0;

    do {
        digits[count++] = (char)('0' + us % 10);
        us /= 10;
        if (count == 3)
            digits[count++] = '.';
    } while (us > 0 || count < 5);

    out = stpcpy(stpcpy(out, name), ";dur=");
    while (count > 0)
        *out++ = digits[--count];
    *out = '\0';
    return out;
}

bool access_format_timing(const struct exchange *exchange,
                          char ret_value[ACCESS_TIMING_MAX]) {
    const struct request_facts *facts = &exchange->record.facts;
    if (!has_stages(facts))
        return false;

    char *out = put_duration(ret_value, "queue", facts->queue_ns);
    out = put_duration(out, ", decode", facts->decode_ns);
    out = put_duration(out, ", compute", facts->compute_ns);
    out = put_duration(out, ", encode", facts->encode_ns);
    put_duration(out, ", total", clock_now_ns() - exchange->record.started);
    return true;
}
