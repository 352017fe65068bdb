/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c: POST /v1/attention. Content-Type and Accept choose the formats of its body
 * and of its reply. */
#include "http/exchange.h"
#include "http/handlers.h"
#include "http/work/infer.h"
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

/* Returns WIRE_NUM_MEDIA when Accept allows no media type that a reply can have. */
static enum wire_media find_reply_media(struct exchange *exchange,
                                        enum wire_media request) {
    struct wire_accept accept = {0};
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, add_accept_header,
                              &accept);
    return wire_accept_choose(&accept, request);
}

bool attention_check(struct exchange *exchange, struct wire_problem *ret_problem) {
    const char *type = content_type_of(exchange);
    enum wire_media request = wire_media_find(type);
    if (request == WIRE_NUM_MEDIA)
        return wire_problem_set(
            ret_problem, WIRE_E_UNSUPPORTED_MEDIA_TYPE, MHD_HTTP_HEADER_CONTENT_TYPE,
            "Content-Type is %.60s, not " WIRE_MEDIA_LIST
            "; with curl, add -H 'Content-Type: " WIRE_MEDIA_TYPE_JSON "'",
            type != NULL ? type : "missing");
    if (find_reply_media(exchange, request) != WIRE_NUM_MEDIA)
        return true;

    return wire_problem_set(
        ret_problem, WIRE_E_NOT_ACCEPTABLE, MHD_HTTP_HEADER_ACCEPT,
        "Accept allows none of the media types that a reply can have; send "
        "one of " WIRE_MEDIA_LIST ", or no Accept");
}

void attention_handle(struct exchange *exchange) {
    static const struct wire_writer *const writers[] = {
        [WIRE_MEDIA_JSON] = &wire_native_writer,
        [WIRE_MEDIA_SAFETENSORS] = &wire_safetensors_writer,
        [WIRE_MEDIA_OCTETS] = &wire_safetensors_writer};
    const struct http_options *options = exchange->options;
    enum wire_media request = wire_media_find(content_type_of(exchange));
    enum wire_media reply = find_reply_media(exchange, request);
    const struct exchange_codec codec = {
        .read = request == WIRE_MEDIA_JSON ? wire_native_read : wire_safetensors_read,
        .writer = writers[reply],
        .content_type = reply == WIRE_MEDIA_OCTETS ? WIRE_MEDIA_TYPE_OCTETS : NULL,
        .json_size = WIRE_NO_SIZE,
        .text = request == WIRE_MEDIA_JSON,
        .models = options->models,
        .num_models = options->num_models};

    infer_submit(exchange, &codec);
}
