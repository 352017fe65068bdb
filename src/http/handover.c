/* SPDX-License-Identifier: Apache-2.0 */
/* handover.c: an exchange whose connection is suspended belongs to a worker, or waits for
 * its turn. */
#include "http/handover.h"

#include "base/clock.h"

void handover_suspend(struct exchange *exchange) {
    exchange->state = EXCHANGE_WITH_WORKER;
    exchange->thread->num_suspended++;
    atomic_fetch_add(&exchange->thread->num_with_workers, 1);
    connection_begin_phase(exchange->peer, CONNECTION_WORKS);
    atomic_store(&exchange->work.job.cancelled, false);
    turn_end(&exchange->thread->turns, &exchange->work.turn, exchange->peer->since);
    MHD_suspend_connection(exchange->connection);
}

/* The order matters: a worker may be done before this returns, and resuming a connection
 * that is not suspended is undefined. */
void handover_submit(struct exchange *exchange,
                     void (*run)(struct sched_job *job, struct sched_worker *worker)) {
    exchange->work.job.run = run;
    handover_suspend(exchange);
    sched_submit(exchange->options->pool, &exchange->work.job);
}

void handover_reclaim(struct exchange *exchange) {
    exchange->thread->num_suspended--;
    exchange->state = EXCHANGE_REPLIES;
    exchange->work.deferred = false;
    connection_begin_phase(exchange->peer, CONNECTION_REPLIES);
}

void handover_resume(struct exchange *exchange) {
    struct http_thread *thread = exchange->thread;

    /* The HTTP thread may free the exchange as soon as it is resumed. */
    MHD_resume_connection(exchange->connection);
    http_thread_wake(thread);
    /* Last: after this the thread may stop its daemon, which the calls above still
     * use. */
    atomic_fetch_sub(&thread->num_with_workers, 1);
}

/* --- to wait for a turn --- */

bool handover_take_turn(struct exchange *exchange) {
    if (turn_take(&exchange->thread->turns, &exchange->work.turn, clock_now_ns()))
        return true;
    exchange->work.deferred = true;
    handover_suspend(exchange);
    turn_wait(&exchange->thread->turns, &exchange->work.turn);
    return false;
}

void handover_give_turn(struct turn *turn) {
    handover_resume(container_of(turn, struct exchange, work.turn));
}

void handover_client_left(struct exchange *exchange) {
    if (exchange->state != EXCHANGE_WITH_WORKER)
        return;
    if (exchange->work.turn.waits)
        turn_leave(&exchange->thread->turns, &exchange->work.turn);
    else if (exchange->work.deferred ||
             !sched_cancel(exchange->options->pool, &exchange->work.job))
        return; /* it has its turn now, or its job runs */
    exchange->work.abandoned = true;
    handover_resume(exchange);
}
