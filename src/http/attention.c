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

/* Returns the Content-Type, or NULL. */
static const char *content_type_of(struct exchange *exchange) {
    return MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                       MHD_HTTP_HEADER_CONTENT_TYPE);
}

/* MHD_KeyValueIterator: collects the Accept headers. */
static enum MHD_Result add_accept_header(void *cls, enum MHD_ValueKind kind,
                                         const char *name, const char *value) {
    (void)kind;
    if (strcasecmp(name, MHD_HTTP_HEADER_ACCEPT) == 0)
        wire_accept_add(cls, value != NULL ? value : "");
    return MHD_YES;
}

/* Reads all lines of Accept. */
static struct wire_accept read_accept(struct exchange *exchange) {
    struct wire_accept accept = {0};
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, add_accept_header,
                              &accept);
    return accept;
}

/* Returns WIRE_NUM_MEDIA when Accept allows no media type that a reply can have. */
static enum wire_media find_reply_media(struct exchange *exchange,
                                        enum wire_media request) {
    const struct wire_accept accept = read_accept(exchange);
    return wire_accept_choose(&accept, request);
}

/* Checks Content-Type. Returns false with *ret_problem set for an unknown one. */
static bool find_request_media(struct exchange *exchange, enum wire_media *ret_media,
                               struct wire_problem *ret_problem) {
    const char *type = content_type_of(exchange);

    *ret_media = wire_media_find(type);
    if (*ret_media != WIRE_NUM_MEDIA)
        return true;
    return wire_problem_set(
        ret_problem, WIRE_E_UNSUPPORTED_MEDIA_TYPE, MHD_HTTP_HEADER_CONTENT_TYPE,
        "Content-Type is %.60s, not " WIRE_MEDIA_LIST
        "; with curl, add -H 'Content-Type: " WIRE_MEDIA_TYPE_JSON "'",
        type != NULL ? type : "missing");
}

bool attention_check(struct exchange *exchange, struct wire_problem *ret_problem) {
    enum wire_media request;

    if (!find_request_media(exchange, &request, ret_problem))
        return false;
    if (find_reply_media(exchange, request) != WIRE_NUM_MEDIA)
        return true;
    return wire_problem_set(
        ret_problem, WIRE_E_NOT_ACCEPTABLE, MHD_HTTP_HEADER_ACCEPT,
        "Accept allows none of the media types that a reply can have; send "
        "one of " WIRE_MEDIA_LIST ", or no Accept");
}

bool heads_check(struct exchange *exchange, struct wire_problem *ret_problem) {
    const struct wire_accept accept = read_accept(exchange);
    enum wire_media request;

    if (!find_request_media(exchange, &request, ret_problem))
        return false;
    if (wire_accept_allows(&accept, WIRE_MEDIA_JSON))
        return true;
    return wire_problem_set(ret_problem, WIRE_E_NOT_ACCEPTABLE, MHD_HTTP_HEADER_ACCEPT,
                            "the reply is " WIRE_MEDIA_TYPE_JSON
                            ", which Accept does not "
                            "allow; send that, or no Accept");
}

/* Returns how the body is read, by its Content-Type, and what is done with it. */
static struct exchange_codec make_codec(struct exchange *exchange,
                                        const struct inference_kind *kind) {
    const struct generation *generation = exchange->generation;
    enum wire_media request = wire_media_find(content_type_of(exchange));

    return (struct exchange_codec){
        .kind = kind,
        .read = request == WIRE_MEDIA_JSON ? wire_native_read : wire_safetensors_read,
        .json_size = WIRE_NO_SIZE,
        .body = {.models = generation->models,
                 .num_models = generation->num_models,
                 .text = request == WIRE_MEDIA_JSON}};
}

/* Chooses how the reply is written, by Accept, and submits the job. */
static void submit_attention(struct exchange *exchange, struct exchange_codec *codec) {
    static const struct wire_writer *const writers[] = {
        [WIRE_MEDIA_JSON] = &wire_native_writer,
        [WIRE_MEDIA_SAFETENSORS] = &wire_safetensors_writer,
        [WIRE_MEDIA_OCTETS] = &wire_safetensors_writer};
    enum wire_media reply =
        find_reply_media(exchange, wire_media_find(content_type_of(exchange)));

    codec->writer = writers[reply];
    codec->content_type = reply == WIRE_MEDIA_OCTETS ? WIRE_MEDIA_TYPE_OCTETS : NULL;
    job_submit(exchange, codec);
}

void attention_handle(struct exchange *exchange) {
    struct exchange_codec codec = make_codec(exchange, &attention_kind);
    submit_attention(exchange, &codec);
}

/* Computes without a model. */
static void handle_given(struct exchange *exchange, const struct inference_kind *kind) {
    struct exchange_codec codec = make_codec(exchange, kind);

    codec.body.models = NULL;
    codec.body.num_models = 0;
    submit_attention(exchange, &codec);
}

void dot_product_handle(struct exchange *exchange) {
    handle_given(exchange, &attention_kind);
}

void stored_handle(struct exchange *exchange) {
    if (captures_use(exchange, true))
        handle_given(exchange, &attention_kind);
}

void stored_heads_handle(struct exchange *exchange) {
    if (captures_use(exchange, true))
        handle_given(exchange, &heads_kind);
}

void heads_handle(struct exchange *exchange) {
    const struct exchange_codec codec = make_codec(exchange, &heads_kind);
    job_submit(exchange, &codec);
}
