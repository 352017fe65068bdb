/* SPDX-License-Identifier: Apache-2.0 */
/* handlers.h: the functions that the table of routes refers to.
 *
 * attention_* and heads_* are in attention.c, oip_* in oip.c, page_* in page.c, metrics_*
 * in metrics/print.c, the others in info.c. */
#ifndef ATTND_HTTP_HANDLERS_H
#define ATTND_HTTP_HANDLERS_H

#include "wire/problem.h"

#include <stdbool.h>

struct exchange;

/* route.check of POST /v1/attention: checks Content-Type (415) and Accept (406). */
bool attention_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* Likewise of POST /v1/heads, whose reply is JSON. */
bool heads_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.check of the Open Inference Protocol: Content-Type is JSON, or JSON with binary
 * data after it, or missing; else 415. */
bool oip_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* Likewise below POST /v2/repository. The body is small, because the HTTP thread reads
 * it. */
bool oip_check_short(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.handle: each makes the reply, or submits the exchange to a worker or to the
 * thread that loads models. */
void attention_handle(struct exchange *exchange);
void heads_handle(struct exchange *exchange);
void models_handle_list(struct exchange *exchange);
void models_handle_one(struct exchange *exchange);
void health_handle_live(struct exchange *exchange);
void health_handle_ready(struct exchange *exchange);
void oip_handle_server(struct exchange *exchange);
void oip_handle_model(struct exchange *exchange);
void oip_handle_ready(struct exchange *exchange);
void oip_handle_config(struct exchange *exchange);
void oip_handle_stats(struct exchange *exchange);
void oip_handle_all_stats(struct exchange *exchange);
void oip_handle_infer(struct exchange *exchange);
void oip_handle_index(struct exchange *exchange);
void oip_handle_load(struct exchange *exchange);
void oip_handle_unload(struct exchange *exchange);
void page_handle(struct exchange *exchange); /* the three files of the page */
void openapi_handle(struct exchange *exchange);
void metrics_handle(struct exchange *exchange);

#endif
