/* SPDX-License-Identifier: Apache-2.0 */
/* suspend.c: what an exchange does while its connection is suspended: it belongs to a
 * worker, or waits for its turn. */
#include "base/container_of.h"
#include "http/exchange.h"

void exchange_suspend(struct exchange *exchange) {
    exchange->state = EXCHANGE_WITH_WORKER;
    exchange->thread->num_suspended++;
    atomic_fetch_add(&exchange->thread->num_with_workers, 1);
    connection_begin_phase(exchange->peer, CONNECTION_WORKS);
    atomic_store(&exchange->job.cancelled, false);
    MHD_suspend_connection(exchange->connection);
}

/* The order matters: a worker may be done before this returns, and resuming a connection
 * that is not suspended is undefined. */
void exchange_hand_over(struct exchange *exchange,
                        void (*run)(struct sched_job *job, struct sched_worker *worker)) {
    exchange->job.run = run;
    exchange_suspend(exchange);
    sched_submit(exchange->options->pool, &exchange->job);
}

void exchange_reclaim(struct exchange *exchange) {
    exchange->thread->num_suspended--;
    exchange->state = EXCHANGE_REPLIES;
    connection_begin_phase(exchange->peer, CONNECTION_REPLIES);
}

void exchange_resume(struct exchange *exchange) {
    struct http_thread *thread = exchange->thread;

    /* The HTTP thread may free the exchange as soon as it is resumed. */
    MHD_resume_connection(exchange->connection);
    http_thread_wake(thread);
    /* Last: after this the thread may stop its daemon, which the calls above still
     * use. */
    atomic_fetch_sub(&thread->num_with_workers, 1);
}

/* --- to wait for a turn --- */

struct turn_flow *exchange_flow(const struct exchange *exchange) {
    return &exchange->memory.client->flows[exchange->peer->list->index];
}

void exchange_wait_for_turn(struct exchange *exchange) {
    exchange->deferred = true;
    exchange_suspend(exchange);
    turn_wait(&exchange->thread->turns, exchange_flow(exchange), &exchange->turn);
}

void exchange_give_turn(struct turn *turn) {
    exchange_resume(container_of(turn, struct exchange, turn));
}

void exchange_client_left(struct exchange *exchange) {
    if (exchange->state != EXCHANGE_WITH_WORKER)
        return;
    if (exchange->turn.flow != NULL)
        turn_leave(&exchange->thread->turns, &exchange->turn);
    else if (exchange->deferred || !sched_cancel(exchange->options->pool, &exchange->job))
        return; /* it has its turn now, or its job runs */
    exchange->abandoned = true;
    exchange_resume(exchange);
}
