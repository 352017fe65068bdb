/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h: from HOST:PORT to bound sockets. */
#ifndef ATTND_HTTP_NET_LISTEN_H
#define ATTND_HTTP_NET_LISTEN_H

#include <attnd/status.h>
#include <netdb.h>
#include <stddef.h>

/* Checks that `listen` is HOST:PORT without binding it. Returns ATTN_E_VALUE, with one
 * line, when it is not. */
attn_status listen_check(const char *listen, attn_error *ret_error);

/* Opens `count` non-blocking sockets that listen on one address, so that each thread
 * accepts from its own. The caller closes ret_fds [count]. ret_url [url_size] is the
 * address as a URL. Errors, with one line: ATTN_E_VALUE as listen_check() or for an
 * unknown host, ATTN_E_IO. */
attn_status listen_open(const char *listen, size_t count, int *ret_fds, char *ret_url,
                        size_t url_size, attn_error *ret_error);

#endif
