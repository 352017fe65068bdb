/* SPDX-License-Identifier: Apache-2.0 */
/* session.h: what the server asks of a gnutls_session_t of libmicrohttpd, beside its
 * certificate (certificate.h). Call these on the thread of the session. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sets *established when the client has finished its handshake. It must live as long as
 * handshakes of the session are tried. */
void tls_session_watch(void *session, bool *established);

/* Returns how many records of a handshake have been read, since the last change of its
 * keys. */
uint64_t tls_session_count_records(void *session);

/* Whether the client has sent data after its handshake, which is complete. */
bool tls_session_has_received(void *session);

/* Sends `size` bytes and the end of what is sent, without waiting. A client that does not
 * read gets part of it or nothing. Call it after the handshake. */
void tls_session_send_last(void *session, const char *data, size_t size);
