/* SPDX-License-Identifier: Apache-2.0 */
/* handover.h: hands an exchange to a worker, or to the thread that loads models, while
 * its connection is suspended, and takes it back. */
#pragma once

#include "http/exchange.h"

/* Suspends the connection. The exchange then belongs to whom it is handed to next, who
 * ends with handover_resume(). */
void handover_suspend(struct exchange *exchange);

/* Suspends the connection, then submits `run`, whose estimates and slot are set. */
void handover_submit(struct exchange *exchange,
                     void (*run)(struct sched_job *job, struct sched_worker *worker));

/* Called by the owner of a suspended exchange. Returns it, with its reply, to its HTTP
 * thread. It must not be touched afterwards. */
void handover_resume(struct exchange *exchange);

/* On the HTTP thread, once the connection was resumed: the thread owns the exchange
 * again. */
void handover_reclaim(struct exchange *exchange);

/* Returns whether a complete request has its turn. Otherwise suspends the connection
 * until handover_give_turn(), and is called again; the HTTP thread keeps the exchange. */
bool handover_take_turn(struct exchange *exchange);
void handover_give_turn(struct turn *turn);

/* On the HTTP thread: the client will send nothing more. A job that waits is taken back,
 * and the connection is then closed. One that runs may end early. */
void handover_client_left(struct exchange *exchange);
