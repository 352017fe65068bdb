/* SPDX-License-Identifier: Apache-2.0 */
/* http/reply.h: makes the reply of an exchange, and hands it to libmicrohttpd.
 * wire/reply.h describes the tensors of one. */
#pragma once

#include "http/exchange.h"

/* Makes a problem the reply. */
void reply_set_problem(struct exchange *exchange, const struct wire_problem *problem);

/* Makes the JSON in exchange->reply.text the reply, with `rest` behind it, which the
 * exchange holds from now on; or NULL. Many slow readers may make `rest` outlive what had
 * it, so each reserves all bytes as if they were its own. Returns false with *ret_problem
 * set when the buffer has an error, or memory is short. */
bool reply_set_json(struct exchange *exchange, int http_status, struct shared_text *rest,
                    struct wire_problem *ret_problem);

/* Makes the text of the generation the reply, as generation_get_text() finds it. Returns
 * false with *ret_problem set when memory is short. */
bool reply_set_shared(struct exchange *exchange, enum generation_text_id id,
                      int64_t max_age, void (*print)(void *context, struct buf *text),
                      void *context, const char *content_type,
                      struct wire_problem *ret_problem);

/* Makes `bytes` the reply, which outlive the server. */
void reply_set_constant(struct exchange *exchange, int http_status,
                        const char *content_type, const char *bytes, size_t size);

/* Returns the model that the first open segment of the path names. Otherwise returns NULL
 * with *ret_problem set: a 404 that points to `list_route`, which lists the models. */
const attn_model *reply_find_model(const struct exchange *exchange,
                                   const char *list_route,
                                   struct wire_problem *ret_problem);

/* Queues the reply, whose bytes then belong to libmicrohttpd, or stay until the exchange
 * ends. Returns MHD_NO, which closes the connection, when memory is short. */
enum MHD_Result reply_send(struct exchange *exchange);
