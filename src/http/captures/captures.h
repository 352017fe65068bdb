/* SPDX-License-Identifier: Apache-2.0 */
/* http/captures/captures.h: the routes of captures that are kept (src/captures). */
#pragma once

#include "http/exchange.h"
#include "http/net/framing.h"

/* Begins PUT /v1/captures/NAME: reserves the whole file. Nothing is reserved when it
 * returns false, with *ret_problem set. */
bool captures_begin_put(struct exchange *exchange, const struct framing *framing,
                        struct wire_problem *ret_problem);

/* Takes bytes of the file to a piece, which is an upload (net/memory.h). When that has no
 * room for them, hands it to a worker, and *ret_taken is false: they come again when it
 * is done. Returns false with *ret_problem set when the PUT must end. */
bool captures_receive(struct exchange *exchange, const char *data, size_t size,
                      bool *ret_taken, struct wire_problem *ret_problem);

/* route.handle of each. A worker takes the last piece of a PUT, and prints the list. */
route_step captures_handle_list, captures_handle_one;

/* --- what they have in common --- */

/* Whether captures are kept. Otherwise returns false with *ret_problem set. */
bool captures_are_on(const struct exchange *exchange, struct wire_problem *ret_problem);

/* Returns the space of the exchange's captures: a key's name, or "". */
static inline const char *captures_space(const struct exchange *exchange) {
    return exchange->request.key_name;
}

/* Makes the exchange use the capture that its path names, for its attention or to tell
 * about it. Otherwise returns false with *ret_problem set (404). */
bool captures_use(struct exchange *exchange, bool for_attention,
                  struct wire_problem *ret_problem);

/* Says that there is no such capture. Returns false. */
bool captures_set_unknown(const struct exchange *exchange,
                          struct wire_problem *ret_problem);

/* Makes the reply of GET, or of PUT with status 200 or 201, with its ETag. The exchange
 * uses the capture, until now. Returns false with *ret_problem set when memory is
 * short. */
bool captures_describe(struct exchange *exchange, int http_status,
                       struct wire_problem *ret_problem);

/* capture_printer.print: what captures_describe() tells behind the times. */
void captures_print_layers(void *capture, struct buf *text);
