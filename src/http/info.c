/* SPDX-License-Identifier: Apache-2.0 */
/* info.c: the routes that describe the server: models, health, and docs/openapi.json.
 *
 * They make the reply on the HTTP thread, so that no computation can delay them. */
#include "http/reply.h"
#include "http/routes.h"
#include "wire/media.h"
#include "wire/native/describe.h"

#include <stdint.h>
#include <string.h>

/* docs/openapi.json, embedded by openapi.S. */
extern const char attnd_openapi[];
extern const uint64_t attnd_openapi_size;

static void print_model_list(void *context, struct buf *text) {
    const struct generation *generation = context;
    wire_native_print_models(generation->models, generation->num_models, text);
}

bool models_handle_list(struct exchange *exchange, struct wire_problem *ret_problem) {
    return reply_set_shared(exchange, GENERATION_MODELS, GENERATION_FOREVER,
                            print_model_list, exchange->generation, WIRE_MEDIA_TYPE_JSON,
                            ret_problem);
}

bool models_handle_one(struct exchange *exchange, struct wire_problem *ret_problem) {
    const attn_model *model = reply_find_model(exchange, "GET /v1/models", ret_problem);
    if (model == NULL)
        return false;
    wire_native_print_model(attn_model_get_info(model), &exchange->reply.text);
    return reply_set_json(exchange, MHD_HTTP_OK, NULL, ret_problem);
}

/* Constants, since a lack of memory must not make a probe fail. */
static bool set_health(struct exchange *exchange, const char *text, int status) {
    reply_set_constant(exchange, status, WIRE_MEDIA_TYPE_JSON, text, strlen(text));
    return true;
}

bool health_handle_live(struct exchange *exchange, struct wire_problem *ret_problem) {
    (void)ret_problem;
    return set_health(exchange, "{\"live\":true}", MHD_HTTP_OK);
}

bool health_handle_ready(struct exchange *exchange, struct wire_problem *ret_problem) {
    (void)ret_problem;
    const char *text = "{\"ready\":true}";
    bool ready = false;

    if (atomic_load(exchange->thread->refuses_ready))
        text = "{\"ready\":false,\"reason\":\"draining\"}";
    else if (config_names_models(exchange->options->config) &&
             exchange->generation->num_models == 0)
        text = "{\"ready\":false,\"reason\":\"no model is loaded\"}";
    else
        ready = true;
    return set_health(exchange, text, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE);
}

bool openapi_handle(struct exchange *exchange, struct wire_problem *ret_problem) {
    (void)ret_problem;
    reply_set_constant(exchange, MHD_HTTP_OK, WIRE_MEDIA_TYPE_JSON, attnd_openapi,
                       (size_t)attnd_openapi_size);
    return true;
}
