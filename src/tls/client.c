/* SPDX-License-Identifier: Apache-2.0 */
/* tls/client.c: a client by GnuTLS that trusts any server. */
#include "tls/client.h"

#if ATTND_TLS
#include <gnutls/gnutls.h>
#include <string.h>

/* Reads until the reply ends or fills the buffer. */
static bool receive_reply(gnutls_session_t session, char *ret_reply, size_t size) {
    size_t got = 0;
    while (got + 1 < size) {
        ssize_t count = gnutls_record_recv(session, ret_reply + got, size - 1 - got);
        if (count <= 0)
            break;
        got += (size_t)count;
    }
    ret_reply[got] = '\0';
    return got > 0;
}

/* An alert that is only a warning is followed by the handshake. */
static bool shake_hands(gnutls_session_t session) {
    int result;
    do
        result = gnutls_handshake(session);
    while (result == GNUTLS_E_INTERRUPTED || result == GNUTLS_E_WARNING_ALERT_RECEIVED);
    return result == GNUTLS_E_SUCCESS;
}

#endif

bool tls_request(int fd, const char *request, char *ret_reply, size_t size) {
#if ATTND_TLS
    gnutls_certificate_credentials_t credentials;
    gnutls_session_t session;
    bool replied = false;

    if (gnutls_certificate_allocate_credentials(&credentials) != GNUTLS_E_SUCCESS)
        return false;
    if (gnutls_init(&session, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL) == GNUTLS_E_SUCCESS) {
        gnutls_transport_set_int(session, fd);
        replied = gnutls_set_default_priority(session) == GNUTLS_E_SUCCESS &&
                  gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, credentials) ==
                      GNUTLS_E_SUCCESS &&
                  shake_hands(session) &&
                  gnutls_record_send(session, request, strlen(request)) ==
                      (ssize_t)strlen(request) &&
                  receive_reply(session, ret_reply, size);
        gnutls_deinit(session);
    }
    gnutls_certificate_free_credentials(credentials);
    return replied;
#else
    (void)fd;
    (void)request;
    (void)ret_reply;
    (void)size;
    return false;
#endif
}
