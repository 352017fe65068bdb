/* SPDX-License-Identifier: Apache-2.0 */
/* info.c: the routes that describe the server: models, health, and docs/openapi.json.
 *
 * They make the reply on the HTTP thread, so that no computation can delay them. */
#include "http/exchange.h"
#include "http/handlers.h"
#include "wire/media.h"
#include "wire/native/describe.h"

#include <stdint.h>

/* docs/openapi.json, embedded by openapi.S. */
extern const char attnd_openapi[];
extern const uint64_t attnd_openapi_size;

void models_handle_list(struct exchange *exchange) {
    const struct served *served = exchange->served;
    exchange_set_json(
        exchange,
        wire_native_print_models(served->models, served->num_models, &exchange->reply),
        MHD_HTTP_OK);
}

void models_handle_one(struct exchange *exchange) {
    size_t index;
    if (!exchange_find_model(exchange, "GET /v1/models", &index))
        return;
    const attn_model_info *info = attn_model_get_info(exchange->served->models[index]);
    exchange_set_json(exchange, wire_native_print_model(info, &exchange->reply),
                      MHD_HTTP_OK);
}

void health_handle_live(struct exchange *exchange) {
    exchange_set_json(exchange, buf_append_text(&exchange->reply, "{\"live\":true}"),
                      MHD_HTTP_OK);
}

void health_handle_ready(struct exchange *exchange) {
    const char *text = "{\"ready\":true}";
    bool ready = false;

    if (atomic_load(exchange->thread->refuses_ready))
        text = "{\"ready\":false,\"reason\":\"draining\"}";
    else if (exchange->served->num_models == 0)
        text = "{\"ready\":false,\"reason\":\"no model is loaded\"}";
    else
        ready = true;
    exchange_set_json(exchange, buf_append_text(&exchange->reply, text),
                      ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE);
}

void openapi_handle(struct exchange *exchange) {
    exchange_set_constant(exchange, WIRE_MEDIA_TYPE_JSON, attnd_openapi,
                          (size_t)attnd_openapi_size);
}
