/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c: notes the begin and the end of a request, and reports to metrics, statistics
 * and log. The rest of its facts is noted where it becomes known. */
#include "http/observe.h"

#include "base/clock.h"
#include "http/log/access.h"
#include "http/metrics/metrics.h"

void observe_begin(struct exchange *exchange) {
    exchange->record.facts.error = WIRE_NUM_ERRORS;
    exchange->record.facts.route = REQUEST_ROUTES_MAX;
    obs_add(&exchange->thread->counts->begun, 1);
}

void observe_model(struct exchange *exchange, const attn_model *model) {
    exchange->record.facts.model =
        model != NULL ? attn_model_get_info(model)->name : NULL;
    exchange->record.stats = generation_stats(exchange->generation, model);
}

/* Counts the request once, with the status of its reply. */
static void count_status(struct exchange *exchange, int status) {
    const struct request_facts *facts = &exchange->record.facts;

    if (exchange->record.stats != NULL)
        model_stats_count(exchange->record.stats, facts, status);
    else
        request_counts_add(&exchange->thread->counts->requests, facts->route, status);
}

void observe_reply(struct exchange *exchange) {
    exchange->record.facts.status = exchange->reply.status;
    count_status(exchange, exchange->reply.status);
}

/* Notes how the request ended. */
static void note_end(struct exchange *exchange, bool sent) {
    struct request_facts *facts = &exchange->record.facts;
    bool replied = facts->status != 0;

    facts->total_ns = clock_now_ns() - exchange->record.started;
    if (!replied && exchange->peer->cut_at != 0) {
        facts->error = WIRE_E_REQUEST_TIMEOUT;
        facts->status = wire_error_get(facts->error)->status;
        facts->end = REQUEST_REPLIED;
    } else if (!replied && !exchange->request.accepted) {
        facts->end = REQUEST_LEFT_RECEIVING;
    } else if (!replied) {
        facts->end =
            exchange->work.abandoned ? REQUEST_LEFT_WAITING : REQUEST_LEFT_COMPUTING;
    } else if (facts->error == WIRE_E_DEADLINE_EXCEEDED &&
               atomic_load(&exchange->work.job.cancelled)) {
        facts->end = REQUEST_LEFT_COMPUTING;
    } else {
        facts->end = sent ? REQUEST_REPLIED : REQUEST_LEFT_SENDING;
    }
}

/* Counts the request for the owner of its key. */
static void count_owner(struct owner *owner, const struct request_facts *facts) {
    obs_add(&owner->requests, 1);
    obs_add(&owner->rejected, facts->error != WIRE_NUM_ERRORS &&
                                  metrics_refusal_reason(facts->error) != NULL);
    obs_add(&owner->busy_ns,
            (uint64_t)(facts->decode_ns + facts->compute_ns + facts->encode_ns));
    obs_add(&owner->received, facts->body_bytes);
    obs_add(&owner->sent, facts->reply_bytes);
}

void observe_end(struct exchange *exchange, bool sent) {
    const struct request_facts *facts = &exchange->record.facts;
    bool was_counted = facts->status != 0;

    note_end(exchange, sent);
    if (!was_counted)
        count_status(exchange, facts->status != 0 ? facts->status : REQUEST_NO_REPLY);
    metrics_count_end(exchange->thread->metrics, exchange->thread->counts, facts);
    if (exchange->request.member != NULL)
        count_owner(exchange->request.member->owner, facts);
    access_log(exchange);
}
