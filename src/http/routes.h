/* SPDX-License-Identifier: Apache-2.0 */
/* routes.h: the table of routes, and the functions that it refers to.
 *
 * Of those below, oip_* are in oip.c, page_* in page.c, models_*, health_* and openapi_*
 * in info.c, and the others in attention.c. */
#pragma once

#include "http/route.h"

extern const struct route_table routes_table;

/* route.check of POST /v1/attention: checks Content-Type (415) and Accept (406). */
bool attention_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.check of POST /v1/heads, whose reply is JSON: checks the same. */
bool heads_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.check of the Open Inference Protocol: Content-Type is JSON, or JSON with binary
 * data after it, or missing; else 415. */
bool oip_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.check below POST /v2/repository: checks the same. The body is small, because the
 * HTTP thread reads it. */
bool oip_check_short(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.handle: each makes the reply, or submits the exchange to a worker or to the
 * thread that loads models. */
void attention_handle(struct exchange *exchange);
void dot_product_handle(struct exchange *exchange);
void stored_handle(struct exchange *exchange); /* attention of a capture that is kept */
void stored_heads_handle(struct exchange *exchange); /* what its heads do */
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
void oip_handle_change(struct exchange *exchange); /* loads, or unloads */
void page_handle(struct exchange *exchange);       /* the three files of the page */
void openapi_handle(struct exchange *exchange);
