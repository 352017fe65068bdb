/* SPDX-License-Identifier: Apache-2.0 */
/* handlers.h: what the routes call; each handler is in the file of its name. */
#ifndef ATTND_HTTP_HANDLERS_H
#define ATTND_HTTP_HANDLERS_H

#include "wire/problem.h"

#include <stdbool.h>

struct exchange;

/* route.check of POST /v1/attention: Content-Type and Accept; 415 or 406. */
bool attention_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.check of the Open Inference Protocol: JSON, JSON with binary data after it, or no
 * Content-Type; 415. */
bool oip_check(struct exchange *exchange, struct wire_problem *ret_problem);

/* route.handle */
void attention_handle(struct exchange *exchange);
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
void openapi_handle(struct exchange *exchange);

#endif
