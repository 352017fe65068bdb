/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c: what is noted about a request at its begin and at its end, and who is told.
 * The rest of its facts is noted where it becomes known. */
#include "base/clock.h"
#include "http/exchange.h"
#include "http/log/access.h"
#include "http/metrics/metrics.h"
#include "wire/models.h"

void exchange_note_begin(struct exchange *exchange) {
    exchange->facts.error = WIRE_NUM_ERRORS;
    exchange->facts.route = REQUEST_ROUTES_MAX;
    obs_add(&exchange->thread->counts->begun, 1);
}

void exchange_note_path(struct exchange *exchange, const char *path) {
    const struct generation *generation = exchange->generation;
    const struct route_word *name = &exchange->words[0];

    const struct route_table *table = exchange->thread->routes;

    exchange->route = route_find(table, path, exchange->words);
    if (exchange->route != NULL) {
        exchange->facts.route = (size_t)(exchange->route - table->routes);
        exchange->facts.infers = exchange->route->access == ROUTE_INFERS;
    }
    if (name->start == NULL)
        return;
    size_t index = wire_models_index(generation->models, generation->num_models,
                                     name->start, name->size);
    if (index < generation->num_models)
        exchange_note_model(exchange, generation->models[index]);
}

void exchange_note_model(struct exchange *exchange, const attn_model *model) {
    exchange->facts.model = model != NULL ? attn_model_get_info(model)->name : NULL;
    exchange->stats = generation_stats(exchange->generation, model);
}

/* Counts the request once, with the status of its reply. */
static void count_status(struct exchange *exchange, int status) {
    const struct request_facts *facts = &exchange->facts;

    if (exchange->stats != NULL)
        model_stats_count(exchange->stats, facts, status);
    else
        request_counts_add(&exchange->thread->counts->requests, facts->route, status);
}

void exchange_note_reply(struct exchange *exchange) {
    exchange->facts.status = exchange->status;
    count_status(exchange, exchange->status);
}

/* Notes how the request ended. */
static void note_end(struct exchange *exchange, bool sent) {
    struct request_facts *facts = &exchange->facts;
    bool replied = facts->status != 0;

    facts->total_ns = clock_now_ns() - exchange->started;
    if (!replied && exchange->peer->cut_at != 0) {
        facts->error = WIRE_E_REQUEST_TIMEOUT;
        facts->status = wire_error_get(facts->error)->status;
        facts->end = REQUEST_REPLIED;
    } else if (!replied && !exchange->accepted) {
        facts->end = REQUEST_LEFT_RECEIVING;
    } else if (!replied) {
        facts->end = exchange->abandoned ? REQUEST_LEFT_WAITING : REQUEST_LEFT_COMPUTING;
    } else if (facts->error == WIRE_E_DEADLINE_EXCEEDED &&
               atomic_load(&exchange->job.cancelled)) {
        facts->end = REQUEST_LEFT_COMPUTING;
    } else {
        facts->end = sent ? REQUEST_REPLIED : REQUEST_LEFT_SENDING;
    }
}

void exchange_note_end(struct exchange *exchange, bool sent) {
    const struct request_facts *facts = &exchange->facts;
    bool was_counted = facts->status != 0;

    note_end(exchange, sent);
    if (!was_counted)
        count_status(exchange, facts->status != 0 ? facts->status : REQUEST_NO_REPLY);
    metrics_count_end(exchange->thread->metrics, exchange->thread->counts, facts);
    access_log(exchange);
}
