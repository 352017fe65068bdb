/* SPDX-License-Identifier: Apache-2.0 */
/* oip.c: the routes of the Open Inference Protocol v2. All but infer, load and unload
 * make their reply on the HTTP thread. */
#include "wire/oip/oip.h"

#include "http/handover.h"
#include "http/reply.h"
#include "http/routes.h"
#include "http/work/inference.h"
#include "wire/media.h"
#include "wire/oip/describe.h"

#include <string.h>
#include <strings.h>

#define SHORT_BODY_MAX ((size_t)64 * 1024)

/* --- which model --- */

/* Returns the model that the path names, after checking the version where it names one;
 * NULL with *ret_problem set (404). */
static const attn_model *find_path_model(const struct exchange *exchange,
                                         struct wire_problem *ret_problem) {
    const attn_model *model =
        reply_find_model(exchange, "POST /v2/repository/index", ret_problem);
    const struct route_segment *version = &exchange->request.segments[1];

    if (model == NULL || version->start == NULL ||
        (version->size == strlen(WIRE_OIP_VERSION) &&
         memcmp(version->start, WIRE_OIP_VERSION, version->size) == 0))
        return model;
    wire_problem_set(ret_problem, WIRE_E_UNKNOWN_VERSION, "version",
                     "model '%s' has no version '%.*s'; ask for version " WIRE_OIP_VERSION
                     ", or none",
                     attn_model_get_info(model)->name,
                     version->size < 100 ? (int)version->size : 100, version->start);
    return NULL;
}

/* Makes the reply what `print` writes about the model that the path names. */
static bool reply_model(struct exchange *exchange,
                        void (*print)(const attn_model_info *info, struct buf *body),
                        struct wire_problem *ret_problem) {
    const attn_model *model = find_path_model(exchange, ret_problem);
    if (model == NULL)
        return false;
    print(attn_model_get_info(model), &exchange->reply.text);
    return reply_set_json(exchange, MHD_HTTP_OK, NULL, ret_problem);
}

/* --- infer --- */

bool oip_check(struct exchange *exchange, struct wire_problem *ret_problem) {
    const char *type = MHD_lookup_connection_value(exchange->connection, MHD_HEADER_KIND,
                                                   MHD_HTTP_HEADER_CONTENT_TYPE);
    enum wire_media media = type != NULL ? wire_media_find(type) : WIRE_MEDIA_JSON;
    if (media == WIRE_MEDIA_JSON || media == WIRE_MEDIA_OCTETS)
        return true;

    return wire_problem_set(
        ret_problem, WIRE_E_UNSUPPORTED_MEDIA_TYPE, MHD_HTTP_HEADER_CONTENT_TYPE,
        "Content-Type is %.60s, not " WIRE_MEDIA_TYPE_JSON " or " WIRE_MEDIA_TYPE_OCTETS
        "; with curl, add -H 'Content-Type: " WIRE_MEDIA_TYPE_JSON "'",
        type);
}

bool oip_check_short(struct exchange *exchange, struct wire_problem *ret_problem) {
    if (exchange->body.max > SHORT_BODY_MAX)
        exchange->body.max = SHORT_BODY_MAX;
    return oip_check(exchange, ret_problem);
}

/* MHD_KeyValueIterator: finds the first and the last value of the header. */
static enum MHD_Result add_size_header(void *cls, enum MHD_ValueKind kind,
                                       const char *name, const char *value) {
    const char **values = cls; /* [2] */
    (void)kind;
    if (strcasecmp(name, WIRE_OIP_SIZE_HEADER) == 0)
        values[values[0] != NULL] = value != NULL ? value : "";
    return MHD_YES;
}

static bool find_json_size(struct exchange *exchange, size_t *ret_size,
                           struct wire_problem *ret_problem) {
    const char *values[2] = {NULL, NULL};
    MHD_get_connection_values(exchange->connection, MHD_HEADER_KIND, add_size_header,
                              values);

    *ret_size = WIRE_NO_SIZE;
    if (values[0] == NULL)
        return true;
    if (values[1] == NULL)
        return wire_oip_json_size(values[0], exchange->body.text.size, ret_size,
                                  ret_problem);
    return wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, WIRE_OIP_SIZE_HEADER,
                            WIRE_OIP_SIZE_HEADER " appears twice; send it once");
}

bool oip_handle_infer(struct exchange *exchange, struct wire_problem *ret_problem) {
    struct exchange_codec codec = {.kind = &attention_kind,
                                   .read = wire_oip_read,
                                   .writer = &wire_oip_writer,
                                   .body.num_models = 1};

    if (find_path_model(exchange, ret_problem) == NULL ||
        !find_json_size(exchange, &codec.json_size, ret_problem))
        return false;
    codec.body.models = &exchange->generation->models[exchange->request.model];
    codec.body.text = codec.json_size == WIRE_NO_SIZE;
    return job_submit(exchange, &codec, ret_problem);
}

/* --- descriptions --- */

bool oip_handle_server(struct exchange *exchange, struct wire_problem *ret_problem) {
    wire_oip_print_server(&exchange->reply.text);
    return reply_set_json(exchange, MHD_HTTP_OK, NULL, ret_problem);
}

bool oip_handle_model(struct exchange *exchange, struct wire_problem *ret_problem) {
    return reply_model(exchange, wire_oip_print_model, ret_problem);
}

bool oip_handle_config(struct exchange *exchange, struct wire_problem *ret_problem) {
    return reply_model(exchange, wire_oip_print_config, ret_problem);
}

static bool is_draining(const struct exchange *exchange) {
    return atomic_load(exchange->thread->refuses_ready);
}

bool oip_handle_ready(struct exchange *exchange, struct wire_problem *ret_problem) {
    const attn_model *model = find_path_model(exchange, ret_problem);
    bool ready = !is_draining(exchange);
    if (model == NULL)
        return false;
    wire_oip_print_ready(attn_model_get_info(model), ready, &exchange->reply.text);
    return reply_set_json(exchange, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                          NULL, ret_problem);
}

/* Adds the statistics of `count` models, from index `first` on. */
static void print_stats(const struct generation *generation, size_t first, size_t count,
                        struct buf *text) {
    buf_append_text(text, "{\"model_stats\":[");
    for (size_t i = first; i < first + count; i++) {
        buf_append_text(text, i > first ? "," : "");
        wire_oip_print_statistics(attn_model_get_info(generation->models[i]),
                                  &generation->stats[i]->inference, text);
    }
    buf_append_text(text, "]}");
}

bool oip_handle_stats(struct exchange *exchange, struct wire_problem *ret_problem) {
    if (find_path_model(exchange, ret_problem) == NULL)
        return false;
    print_stats(exchange->generation, exchange->request.model, 1, &exchange->reply.text);
    return reply_set_json(exchange, MHD_HTTP_OK, NULL, ret_problem);
}

static void print_all_stats(void *context, struct buf *text) {
    const struct generation *generation = context;
    print_stats(generation, 0, generation->num_models, text);
}

bool oip_handle_all_stats(struct exchange *exchange, struct wire_problem *ret_problem) {
    return reply_set_shared(exchange, GENERATION_STATISTICS, GENERATION_RECENT_NS,
                            print_all_stats, exchange->generation, WIRE_MEDIA_TYPE_JSON,
                            ret_problem);
}

/* --- the repository --- */

/* The source of an index. */
struct index_source {
    const struct generation *generation;
    bool draining, ready_only;
};

static void print_index(void *context, struct buf *text) {
    const struct index_source *source = context;
    wire_oip_print_index(source->generation->listings, source->generation->num_listings,
                         source->draining, source->ready_only, text);
}

bool oip_handle_index(struct exchange *exchange, struct wire_problem *ret_problem) {
    const struct buf *body = &exchange->body.text;
    struct index_source source = {exchange->generation, is_draining(exchange), false};

    if (!wire_oip_read_index(body->data != NULL ? body->data : "", body->size,
                             &source.ready_only, ret_problem))
        return false;
    enum generation_text_id id = GENERATION_INDEX +
                                 (source.draining ? GENERATION_INDEX_DRAINING : 0) +
                                 (source.ready_only ? GENERATION_INDEX_READY_ONLY : 0);
    return reply_set_shared(exchange, id, GENERATION_FOREVER, print_index, &source,
                            WIRE_MEDIA_TYPE_JSON, ret_problem);
}

/* model_change.done */
static void finish_change(struct model_change *change,
                          const struct wire_problem *problem) {
    struct exchange *exchange = change->context;

    if (problem != NULL)
        reply_set_problem(exchange, problem);
    else
        reply_set_constant(exchange, MHD_HTTP_OK, NULL, "", 0);
    handover_resume(exchange);
}

/* Whether the model that the path names may be changed, and the body asks for nothing
 * else. */
static bool check_change(struct exchange *exchange, struct wire_problem *problem) {
    const struct buf *body = &exchange->body.text;
    const struct route_segment *name = &exchange->request.segments[0];

    if (exchange->options->changer == NULL)
        return wire_problem_set(problem, WIRE_E_MODEL_CONTROL_OFF, NULL,
                                "explicit model load / unload is not allowed; "
                                "start attnd with --model-control explicit");
    if (name->size > ATTN_NAME_MAX)
        return wire_problem_set(problem, WIRE_E_UNKNOWN_MODEL, "model",
                                "no model has a name of %zu bytes; "
                                "they have %d at most",
                                name->size, ATTN_NAME_MAX);
    return wire_oip_read_change(body->data != NULL ? body->data : "", body->size,
                                problem);
}

/* Suspends the connection until the model that the path names is loaded or unloaded. */
bool oip_handle_change(struct exchange *exchange, struct wire_problem *ret_problem) {
    const struct model_changer *changer = exchange->options->changer;
    const struct route_segment *name = &exchange->request.segments[0];
    const char *action = strrchr(exchange->request.route->path, '/') + 1;

    if (!check_change(exchange, ret_problem))
        return false;
    struct arena *arena = &exchange->work.decoded;
    struct model_change *change = arena_alloc(arena, 1, sizeof *change);
    char *client = arena_alloc(arena, 1, ADDRESS_PRINT_MAX); /* for the log */
    if (change == NULL || client == NULL)
        return wire_problem_set_no_memory(ret_problem);

    *change = (struct model_change){.load = strcmp(action, "load") == 0,
                                    .client = client,
                                    .key = exchange->request.key_name,
                                    .done = finish_change,
                                    .context = exchange};
    memcpy(change->name, name->start, name->size);
    address_print(&exchange->memory.client->address, client);
    exchange->record.facts.model = change->name;
    handover_suspend(exchange);
    changer->submit(changer->context, change);
    return true;
}
