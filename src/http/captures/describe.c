/* SPDX-License-Identifier: Apache-2.0 */
/* http/captures/describe.c: describes captures, and finds the one that a path names. */
#include "base/pace.h"
#include "captures/store.h"
#include "http/captures/captures.h"
#include "http/handover.h"
#include "http/reply.h"
#include "wire/json/write.h"
#include "wire/layer.h"

#include <stdio.h>

#define LISTED_STEPS 400 /* of a capture in the list, and about as many ns */

bool captures_are_on(const struct exchange *exchange, struct wire_problem *ret_problem) {
    if (exchange->options->captures != NULL)
        return true;
    return wire_problem_set(ret_problem, WIRE_E_CAPTURES_OFF, NULL,
                            "this server keeps no captures; start attnd with "
                            "--capture-memory 4GiB, or send the tensors to "
                            "POST /v1/attention/dot-product");
}

bool captures_set_unknown(const struct exchange *exchange,
                          struct wire_problem *ret_problem) {
    const struct route_segment *name = &exchange->request.segments[0];
    return wire_problem_set(
        ret_problem, WIRE_E_UNKNOWN_CAPTURE, NULL,
        "there is no capture '%.*s' here: it was never put, was deleted, has "
        "expired, or the server restarted; put it again",
        name->size < 130 ? (int)name->size : 130, name->start);
}

bool captures_use(struct exchange *exchange, bool for_attention,
                  struct wire_problem *ret_problem) {
    const struct route_segment *name = &exchange->request.segments[0];

    if (!captures_are_on(exchange, ret_problem))
        return false;
    exchange->work.capture =
        captures_acquire(exchange->options->captures, captures_space(exchange),
                         name->start, name->size, for_attention);
    return exchange->work.capture != NULL || captures_set_unknown(exchange, ret_problem);
}

/* --- JSON --- */

static void print_capture(const struct capture_info *info, struct buf *text) {
    buf_append_text(text, "{\"name\":");
    wire_json_add_string(text, info->name);
    long long last_use = info->last_use, ttl = info->ttl / 1000000000;
    buf_append_format(
        text,
        ",\"sha256\":\"%s\",\"bytes\":%zu,\"created\":%lld,\"last_use\":%lld,"
        "\"ttl\":%lld,\"expires\":%lld",
        info->sha256, info->bytes, (long long)info->created, last_use, ttl,
        last_use + ttl);
}

/* Adds a member with a shape, or null when its first size is 0. */
static void print_kept_shape(struct buf *text, const char *name, const size_t *shape,
                             size_t rank) {
    buf_append_format(text, ",\"%s\":", name);
    for (size_t i = 0; shape[0] != 0 && i < rank; i++)
        buf_append_format(text, "%c%zu", i == 0 ? '[' : ',', shape[i]);
    buf_append_text(text, shape[0] != 0 ? "]" : "null");
}

/* Adds a member with a number, or null for one that was left out. */
static void print_option(struct buf *text, const char *name, bool given, double number) {
    if (given)
        buf_append_format(text, ",\"%s\":%.10g", name, number);
    else
        buf_append_format(text, ",\"%s\":null", name);
}

static const char *json_word(bool value) {
    return value ? "true" : "false";
}

static void print_kept_layer(const struct capture_layer *layer, struct buf *text) {
    const struct attn_packed *packed = &layer->packed;
    const size_t queries[] = {layer->num_queries, layer->num_heads, packed->head_size};
    const size_t keys[] = {packed->num_keys, packed->num_kv_heads, packed->head_size};
    const size_t values[] = {packed->values != NULL ? packed->num_keys : 0,
                             packed->num_kv_heads, packed->value_size};
    const size_t bias[] = {layer->bias_heads, layer->bias_rows, packed->num_keys};
    size_t skipped = layer->bias_rank == 2;

    buf_append_text(text, "{\"name\":");
    wire_json_add_string(text, layer->name);
    print_kept_shape(text, "queries", queries, 3);
    print_kept_shape(text, "keys", keys, 3);
    print_kept_shape(text, "values", values, 3);
    buf_append_format(text, ",\"dtype\":\"%s\"", packed->keys_type);
    print_option(text, "scale", layer->has_scale, layer->scale);
    print_option(text, "softcap", layer->softcap != 0, layer->softcap);
    buf_append_format(text, ",\"causal\":%s", json_word(layer->causal));
    print_option(text, "window", layer->window != 0, (double)layer->window);
    buf_append_format(text, ",\"sinks\":%s,\"slopes\":%s",
                      json_word(layer->sinks != NULL), json_word(layer->slopes != NULL));
    print_kept_shape(text, "bias", bias + skipped, 3 - skipped);
    buf_append_format(
        text,
        ",\"positions\":%s,\"key_positions\":%s,\"token_ids\":%s,"
        "\"targets\":%s}",
        json_word(layer->positions != NULL), json_word(layer->key_positions != NULL),
        json_word(layer->token_ids != NULL), json_word(layer->targets != NULL));
}

void captures_print_layers(void *capture, struct buf *text) {
    const struct capture_layers *layers = capture_get_layers(capture);

    buf_append_text(text, ",\"layers\":[");
    for (size_t i = 0; i < layers->count; i++) {
        buf_append_text(text, i > 0 ? "," : "");
        print_kept_layer(&layers->items[i], text);
    }
    buf_append_text(text, "],\"left_out\":[");
    for (size_t i = 0; layers->left_out[i] != NULL; i++)
        buf_append_format(text, "%s\"%s\"", i > 0 ? "," : "", layers->left_out[i]);
    buf_append_text(text, "]}");
}

bool captures_describe(struct exchange *exchange, int http_status,
                       struct wire_problem *ret_problem) {
    struct capture *capture = exchange->work.capture;
    const struct capture_info info = capture_get_info(capture);

    print_capture(&info, &exchange->reply.text);
    snprintf(exchange->reply.etag, sizeof exchange->reply.etag, "\"%s\"", info.sha256);
    bool made = reply_set_json(exchange, http_status, shared_text_hold(info.description),
                               ret_problem);
    capture_release(capture);
    exchange->work.capture = NULL; /* who reads slowly keeps it from nobody */
    return made;
}

/* sched_job.run: prints each capture with how many layers it has. */
static void run_list(struct sched_job *job, struct sched_worker *worker) {
    struct exchange *exchange = container_of(job, struct exchange, work.job);
    struct buf *text = &exchange->reply.text;
    struct captures *store = exchange->options->captures;
    const char *space = captures_space(exchange);
    struct capture_info info;
    struct wire_problem problem;
    (void)worker;

    buf_append_text(text, "{\"captures\":[");
    for (struct capture *capture = captures_next(store, space, NULL, &info);
         capture != NULL; capture = captures_next(store, space, capture, &info)) {
        buf_append_text(
            text, text->data != NULL && text->data[text->size - 1] == '}' ? "," : "");
        print_capture(&info, text);
        buf_append_format(text, ",\"num_layers\":%zu}",
                          capture_get_layers(capture)->count);
        pace_add(LISTED_STEPS);
    }
    buf_append_text(text, "]}");
    if (!reply_set_json(exchange, MHD_HTTP_OK, NULL, &problem))
        reply_set_problem(exchange, &problem);
    handover_resume(exchange);
}

bool captures_handle_list(struct exchange *exchange, struct wire_problem *ret_problem) {
    if (!captures_are_on(exchange, ret_problem))
        return false;
    exchange->work.job.cost =
        (int64_t)captures_get_stats(exchange->options->captures).captures * LISTED_STEPS;
    handover_submit(exchange, run_list);
    return true;
}
