/* SPDX-License-Identifier: Apache-2.0 */
/* http/server.h: the daemon's front: sockets, threads, start and stop. */
#ifndef ATTND_HTTP_SERVER_H
#define ATTND_HTTP_SERVER_H

#include "http/options.h"

#include <attnd/status.h>
#include <stdbool.h>
#include <stdint.h>

struct http_server;

/* Binds the address and starts the threads: requests are served from now on. Errors, with
 * one line in ret_error: ATTN_E_VALUE for a malformed address, ATTN_E_IO when it cannot
 * be bound, ATTN_E_NOMEM. */
attn_status http_server_create(const struct http_options *options,
                               struct http_server **ret_server, attn_error *ret_error);

/* Borrows the address that it serves on, as a URL: "http://127.0.0.1:8080". */
const char *http_server_url(const struct http_server *server);

/* Stops accepting, answers what was accepted, and ends the threads. Past `deadline`
 * (clock_now_ns) clients that are still sending are cut off. Returns false when a request
 * is still being computed a second after the deadline: then every thread that has ended
 * is joined, the others are detached, and the process may only exit. */
bool http_server_stop(struct http_server *server, int64_t deadline);

/* Whether every request that had arrived complete was answered; after http_server_stop()
 * returned true. */
bool http_server_answered_all(const struct http_server *server);

/* Gives the memory back, after http_server_stop() returned true. NULL is fine. */
void http_server_destroy(struct http_server *server);

#endif
