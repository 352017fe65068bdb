/* SPDX-License-Identifier: Apache-2.0 */
/* access.c: prints the facts of a request. */
#include "http/log/access.h"

#include "base/clock.h"
#include "base/log.h"
#include "http/exchange.h"

#include <string.h>

static const char *const end_words[] = {
    [REQUEST_REPLIED] = "replied",           [REQUEST_LEFT_RECEIVING] = "left_receiving",
    [REQUEST_LEFT_WAITING] = "left_waiting", [REQUEST_LEFT_COMPUTING] = "left_computing",
    [REQUEST_LEFT_SENDING] = "left_sending",
};

/* Whether a worker had the request, so that its stages took time. */
static bool has_stages(const struct request_facts *facts) {
    return facts->queue_ns != 0 || facts->decode_ns != 0;
}

void access_log(const struct exchange *exchange) {
    const struct request_facts *facts = &exchange->record.facts;
    const struct route *route = exchange->request.route;
    const struct trace *trace = &exchange->record.trace;
    bool always = exchange->options->config->access_log, staged = has_stages(facts);
    char client[ADDRESS_PRINT_MAX];

    if (!always && !log_enabled(LOG_DEBUG))
        return;
    address_print(&exchange->memory.client->address, client);
    bool failed = facts->error != WIRE_NUM_ERRORS;
    struct log_field fields[] = {
        LOG_TEXT("id", trace->id),
        LOG_TEXT("method", exchange->request.method),
        LOG_TEXT("route", route != NULL ? route->path : "(none)"),
        LOG_TEXT("model", facts->model != NULL ? facts->model : ""),
        LOG_TEXT("client", client),
        LOG_TEXT("key", exchange->request.key_name),
        LOG_NUMBER("status", facts->status),
        LOG_TEXT("error", failed ? wire_error_get(facts->error)->title : ""),
        LOG_TEXT("end", end_words[facts->end]),
        LOG_NUMBER("body_bytes", facts->body_bytes),
        LOG_NUMBER("reply_bytes", facts->reply_bytes),
        LOG_NUMBER(staged ? "rows" : NULL, facts->rows),
        LOG_NUMBER(staged ? "queue_us" : NULL, facts->queue_ns / 1000),
        LOG_NUMBER(staged ? "decode_us" : NULL, facts->decode_ns / 1000),
        LOG_NUMBER(staged ? "compute_us" : NULL, facts->compute_ns / 1000),
        LOG_NUMBER(staged ? "encode_us" : NULL, facts->encode_ns / 1000),
        LOG_NUMBER("total_us", facts->total_ns / 1000),
        LOG_TEXT("trace_id", trace->trace_id),
        LOG_TEXT("span_id", trace->span_id)};

    /* Leave out stages that were not reached, and texts that are empty. */
    size_t count = 0;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const char *text = fields[i].text;
        if (fields[i].key != NULL && (text == NULL || *text != '\0'))
            fields[count++] = fields[i];
    }
    log_always(always ? LOG_INFO : LOG_DEBUG, "request", fields, count);
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
