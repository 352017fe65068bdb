/* SPDX-License-Identifier: Apache-2.0 */
/* tls/client.h: one request over TLS, as attnd health sends it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Sends `request` over a connected, blocking socket, and reads a reply until it ends or
 * fills ret_reply[size], a string. The server's certificate and name are not checked.
 * Returns false when there is no reply, which includes timeouts of the socket and a build
 * without TLS. */
bool tls_request(int fd, const char *request, char *ret_reply, size_t size);
