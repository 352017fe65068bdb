/* SPDX-License-Identifier: Apache-2.0 */
/* http/server.h: starts and stops the HTTP server: its sockets and its threads. */
#pragma once

#include "http/options.h"

#include <attnd/status.h>
#include <stdbool.h>
#include <stdint.h>

struct http_server;

/* Binds the addresses and starts the threads; requests are served from then on. Errors,
 * with one line in ret_error: ATTN_E_VALUE for a malformed address or an unknown host,
 * ATTN_E_IO when it cannot be bound, ATTN_E_NOMEM. */
attn_status http_server_create(const struct http_options *options,
                               struct http_server **ret_server, attn_error *ret_error);

/* Borrows the URL of a --listen, or of the admin address, such as "http://127.0.0.1:8080"
 * or "unix:/run/attnd/attnd.sock"; NULL after the last one. */
const char *http_server_url(const struct http_server *server, bool admin, size_t index);

/* From now on the server says that it is not ready, and serves as before. */
void http_server_refuse_ready(struct http_server *server);

/* Whether every HTTP thread has gone through its loop since the last call. Wakes them, so
 * that they will have at the next one. One thread at a time may call it. */
bool http_server_is_alive(struct http_server *server);

/* Stops accepting, replies to what was accepted, and ends the threads. That of the admin
 * address goes on until the others have ended. Past `deadline` (clock_now_ns), clients
 * that are still sending are cut off. Meanwhile it calls chores() every few ms.
 *
 * Returns false when a request is still being computed a second after the deadline. Then
 * the threads that have ended are joined, the others are detached, and the process may
 * only exit. */
bool http_server_stop(struct http_server *server, int64_t deadline,
                      void (*chores)(void *context), void *context);

/* Whether every request that had arrived complete got a reply. Call it after
 * http_server_stop() has returned true. */
bool http_server_replied_to_all(const struct http_server *server);

/* Frees the server. Call it after http_server_stop() has returned true. Accepts NULL. */
void http_server_destroy(struct http_server *server);
