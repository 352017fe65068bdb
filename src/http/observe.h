/* SPDX-License-Identifier: Apache-2.0 */
/* observe.h: what is noted about a request, and reported to all who watch it. On the HTTP
 * thread, but observe_model() on any owner. */
#pragma once

#include "http/exchange.h"

/* When the headers have arrived. */
void observe_begin(struct exchange *exchange);

/* When the model of the request is known. NULL: it is none that is served. */
void observe_model(struct exchange *exchange, const attn_model *model);

/* When the reply begins: counts the request. A client that has read its reply finds it
 * among the statistics. */
void observe_reply(struct exchange *exchange);

/* When the request has ended: completes its facts. `sent` is whether libmicrohttpd has
 * sent the whole reply. */
void observe_end(struct exchange *exchange, bool sent);
