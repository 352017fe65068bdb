/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h: from HOST:PORT to bound sockets. */
#pragma once

#include <attnd/status.h>
#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>

/* Checks that `listen`, the value of `option`, is HOST:PORT without binding it. Returns
 * ATTN_E_VALUE, with one line, when it is not. */
attn_status listen_check(const char *option, const char *listen, attn_error *ret_error);

/* Whether only this machine can reach every address of `listen`, which listen_check()
 * accepts. Returns false for an unknown host. */
bool listen_is_loopback(const char *listen);

/* Opens `count` non-blocking sockets that listen on one address, so that each thread
 * accepts from its own. The caller closes ret_fds [count]. ret_address [size] is
 * HOST:PORT with the port that was found. Errors, with one line: ATTN_E_VALUE as
 * listen_check() or for an unknown host, ATTN_E_IO. */
attn_status listen_open(const char *option, const char *listen, size_t count,
                        int *ret_fds, char *ret_address, size_t size,
                        attn_error *ret_error);
