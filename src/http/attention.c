/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: POST /v1/attention and its relatives, and POST /v1/heads. Content-Type
 * and Accept choose the formats of the body and of the reply. */
#include "http/captures/captures.h"
#include "http/exchange.h"
#include "http/routes.h"
#include "http/work/inference.h"
#include "wire/media.h"
#include "wire/native/native.h"
#include "wire/safetensors/safetensors.h"

#include <strings.h>

/* MHD_KeyValueIterator: collects the Accept headers. */
static enum MHD_Result add_accept_header(void *cls, enum MHD_ValueKind kind,
                                         const char *name, const char *value) {
    (void)kind;
    if (strcasecmp(name, MHD_HTTP_HEADER_ACCEPT) == 0)
        wire_accept_add(cls, value != NULL ? value : "");
    return MHD_YES;
}

/* Finds what the body is, and reads all lines of Accept. Returns false with *ret_problem
 * set for an unknown Content-Type. */
static bool find_media(struct exchange *exchange, struct wire_accept *ret_accept,
                       struct wire_problem *ret_problem) {
    const char *type = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                                   MHD_HTTP_HEADER_CONTENT_TYPE);

    exchange->request.body_media = wire_media_find(type);
    if (exchange->request.body_media == WIRE_NUM_MEDIA)
        return wire_problem_set(
            ret_problem, WIRE_E_UNSUPPORTED_MEDIA_TYPE, MHD_HTTP_HEADER_CONTENT_TYPE,
            "Content-Type is %.60s, not " WIRE_MEDIA_LIST
            "; with curl, add -H 'Content-Type: " WIRE_MEDIA_TYPE_JSON "'",
            type != NULL ? type : "missing");
    *ret_accept = (struct wire_accept){0};
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, add_accept_header,
                              ret_accept);
    return true;
}

bool attention_check(struct exchange *exchange, struct wire_problem *ret_problem) {
    struct wire_accept accept;

    if (!find_media(exchange, &accept, ret_problem))
        return false;
    exchange->request.reply_media =
        wire_accept_choose(&accept, exchange->request.body_media);
    if (exchange->request.reply_media != WIRE_NUM_MEDIA)
        return true;
    return wire_problem_set(
        ret_problem, WIRE_E_NOT_ACCEPTABLE, MHD_HTTP_HEADER_ACCEPT,
        "Accept allows none of the media types that a reply can have; send "
        "one of " WIRE_MEDIA_LIST ", or no Accept");
}

bool heads_check(struct exchange *exchange, struct wire_problem *ret_problem) {
    struct wire_accept accept;

    if (!find_media(exchange, &accept, ret_problem))
        return false;
    exchange->request.reply_media = WIRE_MEDIA_JSON;
    if (wire_accept_allows(&accept, WIRE_MEDIA_JSON))
        return true;
    return wire_problem_set(ret_problem, WIRE_E_NOT_ACCEPTABLE, MHD_HTTP_HEADER_ACCEPT,
                            "the reply is " WIRE_MEDIA_TYPE_JSON
                            ", which Accept does not "
                            "allow; send that, or no Accept");
}

/* Submits a job by the media types that were found. The request may name a model, when
 * `names_model` is true and its path names no capture. */
static bool submit_inference(struct exchange *exchange, const struct inference_kind *kind,
                             bool names_model, struct wire_problem *ret_problem) {
    static const struct wire_writer *const writers[] = {
        [WIRE_MEDIA_JSON] = &wire_native_writer,
        [WIRE_MEDIA_SAFETENSORS] = &wire_safetensors_writer,
        [WIRE_MEDIA_OCTETS] = &wire_safetensors_writer};
    enum wire_media reply = exchange->request.reply_media;
    bool text = exchange->request.body_media == WIRE_MEDIA_JSON;
    bool of_capture = exchange->request.route->access & ROUTE_OF_CAPTURE;
    struct exchange_codec codec = {
        .kind = kind,
        .read = text ? wire_native_read : wire_safetensors_read,
        .writer = writers[reply],
        .json_size = WIRE_NO_SIZE,
        .content_type = reply == WIRE_MEDIA_OCTETS ? WIRE_MEDIA_TYPE_OCTETS : NULL,
        .body.text = text};

    if (of_capture && !captures_use(exchange, true, ret_problem))
        return false;
    if (names_model && !of_capture) {
        codec.body.models = exchange->generation->models;
        codec.body.num_models = exchange->generation->num_models;
    }
    return job_submit(exchange, &codec, ret_problem);
}

bool attention_handle(struct exchange *exchange, struct wire_problem *ret_problem) {
    return submit_inference(exchange, &attention_kind, true, ret_problem);
}

bool heads_handle(struct exchange *exchange, struct wire_problem *ret_problem) {
    return submit_inference(exchange, &heads_kind, true, ret_problem);
}

bool dot_product_handle(struct exchange *exchange, struct wire_problem *ret_problem) {
    return submit_inference(exchange, &attention_kind, false, ret_problem);
}
