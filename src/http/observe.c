/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c: what is noted about a request at its begin and at its end, and who is told.
 * The rest of its facts is noted where it becomes known. */
#include "base/clock.h"
#include "base/log.h"
#include "http/exchange.h"
#include "wire/models.h"

void exchange_note_path(struct exchange *exchange, const char *path) {
    const struct served *served = exchange->served;
    const struct route_word *name = &exchange->words[0];

    exchange->facts.route = route_find(path, exchange->words);
    if (name->start == NULL)
        return;
    size_t index =
        wire_models_index(served->models, served->num_models, name->start, name->size);
    if (index < served->num_models)
        exchange->facts.model = attn_model_get_info(served->models[index])->name;
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

    note_end(exchange, sent);
    log_write(LOG_DEBUG, "request",
              LOG_TEXT("route", facts->route != NULL ? facts->route->path : "none"),
              LOG_NUMBER("status", facts->status),
              LOG_NUMBER("microseconds", facts->total_ns / 1000),
              LOG_TEXT("sent", facts->end == REQUEST_REPLIED ? "yes" : "no"));
}
