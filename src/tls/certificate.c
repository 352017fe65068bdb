/* SPDX-License-Identifier: Apache-2.0 */
/* certificate.c: certificates by GnuTLS. Without GnuTLS no certificate can be made, and
 * the functions that take one are never called. */
#include "tls/certificate.h"

#include "base/error.h"

#if ATTND_TLS
#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of one message of a handshake. Clients show no certificate, so theirs are short. GnuTLS
 * would keep 128 KiB, more than is reserved for a connection (http/net/memory.h). */
#define HANDSHAKE_BYTES_MAX ((size_t)16 * 1024)

struct tls_certificate {
    void *credentials; /* gnutls_certificate_credentials_t */
    int64_t expiry;
    atomic_size_t num_users;
};

bool tls_is_built(void) {
    return ATTND_TLS;
}

#if ATTND_TLS
/* GnuTLS does not write to the text. */
static gnutls_datum_t datum_of(const char *text) {
    return (gnutls_datum_t){(unsigned char *)(uintptr_t)text, (unsigned)strlen(text)};
}

/* Refuses a certificate that is not valid now; `i` is its index of `count`. */
static bool check_time(gnutls_x509_crt_t certificate, unsigned i, unsigned count,
                       attn_error *ret_error) {
    time_t now = time(NULL), begin = gnutls_x509_crt_get_activation_time(certificate),
           end = gnutls_x509_crt_get_expiration_time(certificate);
    char text[32];
    struct tm date;

    if (begin <= now && now < end)
        return true;
    gmtime_r(begin > now ? &begin : &end, &date);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &date);
    error_set(ret_error, ATTN_E_VALUE, "certificate %u of %u %s %s; %s", i + 1, count,
              begin > now ? "begins at" : "ended at", text,
              begin > now ? "correct the clock, or wait" : "renew it");
    return false;
}

/* Checks that all certificates of the chain are valid now, and that each has signed the
 * one before it. Finds when the first ends. Returns GNUTLS_E_SUCCESS; or what is wrong
 * with the text, without an error. */
static int read_chain(const gnutls_datum_t *text, int64_t *ret_expiry,
                      attn_error *ret_error) {
    gnutls_x509_crt_t *chain;
    unsigned count;
    int result =
        gnutls_x509_crt_list_import2(&chain, &count, text, GNUTLS_X509_FMT_PEM, 0);
    if (result < 0)
        return result;

    *ret_expiry = gnutls_x509_crt_get_expiration_time(chain[0]);
    for (unsigned i = 0; i < count && check_time(chain[i], i, count, ret_error); i++) {
        if (i > 0 && !gnutls_x509_crt_check_issuer(chain[i - 1], chain[i]))
            error_keep(ret_error, ATTN_E_VALUE,
                       "certificate %u of %u has not signed the one before it; give "
                       "attnd's own, then each one's issuer",
                       i + 1, count);
    }
    for (unsigned i = 0; i < count; i++)
        gnutls_x509_crt_deinit(chain[i]);
    gnutls_free(chain);
    return GNUTLS_E_SUCCESS;
}

/* Whether the text is a private key, whatever certificate it belongs to. */
static bool is_private_key(const gnutls_datum_t *text) {
    gnutls_x509_privkey_t key;
    if (gnutls_x509_privkey_init(&key) != GNUTLS_E_SUCCESS)
        return false;
    int result = gnutls_x509_privkey_import2(key, text, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_x509_privkey_deinit(key);
    return result == GNUTLS_E_SUCCESS;
}

/* Reads both texts. Returns GNUTLS_E_SUCCESS, or what is wrong, and of which. An error is
 * one of the chain. */
static int read_pem(struct tls_certificate *certificate, const gnutls_datum_t *chain,
                    const gnutls_datum_t *private_key, bool *ret_is_key,
                    attn_error *ret_error) {
    gnutls_certificate_credentials_t credentials;
    int result = gnutls_certificate_allocate_credentials(&credentials);
    if (result != GNUTLS_E_SUCCESS)
        return result;
    certificate->credentials = credentials;

    /* Reads the certificate first: GnuTLS 3.7 leaks memory of the next call when it
     * cannot. */
    result = read_chain(chain, &certificate->expiry, ret_error);
    if (result != GNUTLS_E_SUCCESS || ret_error->status != ATTN_OK)
        return result;
    result = gnutls_certificate_set_x509_key_mem(credentials, chain, private_key,
                                                 GNUTLS_X509_FMT_PEM);
    if (result >= 0)
        return GNUTLS_E_SUCCESS;
    *ret_is_key = !is_private_key(private_key);
    return result;
}

/* gnutls_certificate_retrieve_function2 */
static int find_none(gnutls_session_t session, const gnutls_datum_t *authorities,
                     int num_authorities, const gnutls_pk_algorithm_t *algorithms,
                     int num_algorithms, gnutls_pcert_st **ret_chain,
                     unsigned *ret_length, gnutls_privkey_t *ret_key) {
    (void)session;
    (void)authorities;
    (void)num_authorities;
    (void)algorithms;
    (void)num_algorithms;
    *ret_chain = NULL;
    *ret_length = 0;
    *ret_key = NULL;
    return 0;
}
#endif

void *tls_certificate_find_none(void) {
#if ATTND_TLS
    return (void *)(uintptr_t)find_none;
#else
    return NULL;
#endif
}

/* Fills a certificate that is empty. */
static attn_status fill_certificate(struct tls_certificate *certificate,
                                    const char *chain, const char *private_key,
                                    attn_error *ret_error) {
#if ATTND_TLS
    const gnutls_datum_t first = datum_of(chain), second = datum_of(private_key);
    attn_error error = {.status = ATTN_OK};
    bool is_key = false;
    int result = read_pem(certificate, &first, &second, &is_key, &error);
    if (error.status != ATTN_OK)
        return error_set(ret_error, error.status, "%s", error.text);
    if (result == GNUTLS_E_SUCCESS)
        return ATTN_OK;
    if (result == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "the private key belongs to another certificate");
    return error_set(
        ret_error, result == GNUTLS_E_MEMORY_ERROR ? ATTN_E_NOMEM : ATTN_E_FORMAT,
        "the %s is not usable PEM: %s; %s", is_key ? "private key" : "certificate",
        gnutls_strerror(result),
        is_key ? "openssl pkey -in FILE -out NEW takes its password away, and with "
                 "-inform DER makes PEM of DER"
               : "openssl x509 -inform DER -in FILE -out NEW makes PEM of DER");
#else
    (void)certificate;
    (void)chain;
    (void)private_key;
    return error_set(ret_error, ATTN_E_VALUE, "this attnd was built without TLS");
#endif
}

static void destroy_certificate(struct tls_certificate *certificate) {
#if ATTND_TLS
    if (certificate->credentials != NULL)
        gnutls_certificate_free_credentials(certificate->credentials);
#endif
    free(certificate);
}

attn_status tls_certificate_create(const char *chain, const char *private_key,
                                   struct tls_certificate **ret_certificate,
                                   attn_error *ret_error) {
    struct tls_certificate *certificate = calloc(1, sizeof *certificate);
    if (certificate == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");

    atomic_init(&certificate->num_users, 1);
    attn_status status = fill_certificate(certificate, chain, private_key, ret_error);
    if (status == ATTN_OK)
        *ret_certificate = certificate;
    else
        destroy_certificate(certificate);
    return status;
}

struct tls_certificate *tls_certificate_acquire(struct tls_certificate *certificate) {
    atomic_fetch_add(&certificate->num_users, 1);
    return certificate;
}

void tls_certificate_release(struct tls_certificate *certificate) {
    if (certificate != NULL && atomic_fetch_sub(&certificate->num_users, 1) == 1)
        destroy_certificate(certificate);
}

int64_t tls_certificate_expiry(const struct tls_certificate *certificate) {
    return certificate->expiry;
}

bool tls_certificate_use(struct tls_certificate *certificate, void *session) {
#if ATTND_TLS
    gnutls_handshake_set_max_packet_length(session, HANDSHAKE_BYTES_MAX);
    return gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE,
                                  certificate->credentials) == GNUTLS_E_SUCCESS;
#else
    (void)certificate;
    (void)session;
    return false;
#endif
}
