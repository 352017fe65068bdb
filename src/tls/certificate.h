/* SPDX-License-Identifier: Apache-2.0 */
/* certificate.h: the certificate that the server shows on connections with TLS. Only the
 * room tls knows GnuTLS. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stdint.h>

/* A chain with the private key of its first certificate. Immutable and counted, so that
 * connections go on with it after another has taken its place. */
struct tls_certificate;

/* Whether this build has TLS. */
bool tls_is_built(void);

/* Makes a certificate of two texts in PEM form; its count is 1. Errors, with one line:
 * ATTN_E_FORMAT when a text is malformed or the key belongs to another certificate,
 * ATTN_E_VALUE in a build without TLS, ATTN_E_NOMEM. */
attn_status tls_certificate_create(const char *chain, const char *private_key,
                                   struct tls_certificate **ret_certificate,
                                   attn_error *ret_error);

/* Counts one user more; returns `certificate`. Thread-safe. */
struct tls_certificate *tls_certificate_acquire(struct tls_certificate *certificate);

/* Counts one user less; the last frees it. Accepts NULL. Thread-safe. */
void tls_certificate_release(struct tls_certificate *certificate);

/* Returns a function for MHD_OPTION_HTTPS_CERT_CALLBACK that finds no certificate: each
 * session is given one by tls_certificate_use(), so libmicrohttpd needs no text of
 * one. */
void *tls_certificate_find_none(void);

/* Returns when the certificate expires, in seconds since 1970. */
int64_t tls_certificate_expiry(const struct tls_certificate *certificate);

/* Lets a gnutls_session_t whose handshake has not begun show this certificate, which must
 * live as long as the session. Returns false when that fails. */
bool tls_certificate_use(struct tls_certificate *certificate, void *session);
