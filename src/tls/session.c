/* SPDX-License-Identifier: Apache-2.0 */
/* session.c: sessions by GnuTLS. Without GnuTLS these functions are never called. */
#include "tls/session.h"

#include <endian.h>

#if ATTND_TLS
#include <gnutls/gnutls.h>
#include <sys/types.h>

/* gnutls_handshake_hook_func */
static int notice_finished(gnutls_session_t session, unsigned type, unsigned when,
                           unsigned incoming, const gnutls_datum_t *message) {
    (void)type;
    (void)when;
    (void)message;
    if (incoming)
        *(bool *)gnutls_db_get_ptr(session) = true;
    return GNUTLS_E_SUCCESS;
}
#endif

void tls_session_watch(void *session, bool *established) {
#if ATTND_TLS
    /* The pointer of a session store, which libmicrohttpd does not have. It uses the
     * session's own pointer itself. */
    gnutls_db_set_ptr(session, established);
    gnutls_handshake_set_hook_function(session, GNUTLS_HANDSHAKE_FINISHED,
                                       GNUTLS_HOOK_POST, notice_finished);
#else
    (void)session;
    (void)established;
#endif
}

uint64_t tls_session_count_records(void *session) {
    uint64_t number = 0; /* of the next record, big-endian */
#if ATTND_TLS
    gnutls_record_get_state(session, 1, NULL, NULL, NULL, (unsigned char *)&number);
#else
    (void)session;
#endif
    return be64toh(number);
}

bool tls_session_has_received(void *session) {
#if ATTND_TLS
    /* TLS 1.3 counts records anew after the handshake. In 1.2 the client's last message
     * of it is the first that counts. */
    const unsigned first = gnutls_protocol_get_version(session) < GNUTLS_TLS1_3 ? 1 : 0;
    return tls_session_count_records(session) > first;
#else
    (void)session;
    return false;
#endif
}

void tls_session_send_last(void *session, const char *data, size_t size) {
#if ATTND_TLS
    ssize_t sent = gnutls_record_send(session, data, size);
    (void)sent; /* the connection ends anyway */
    gnutls_bye(session, GNUTLS_SHUT_WR);
#else
    (void)session;
    (void)data;
    (void)size;
#endif
}
