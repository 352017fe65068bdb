/* SPDX-License-Identifier: Apache-2.0 */
/* secrets.h: the keys and the certificate of now, and the files that they come from. Both
 * may be replaced while requests are served. */
#pragma once

#include "http/net/api_keys.h"
#include "obs/counter.h"
#include "tls/certificate.h"
#include "wire/problem.h"

#include <microhttpd.h>
#include <pthread.h>

/* WWW-Authenticate of a 401 (RFC 6750, section 3): for none, and for an unknown one. */
#define SECRETS_NO_KEY    "Bearer realm=\"attnd\""
#define SECRETS_WRONG_KEY SECRETS_NO_KEY ", error=\"invalid_token\""

/* The paths, borrowed; NULL for those that were not given. */
struct secret_files {
    const char *keys;        /* --api-key-file */
    const char *certificate; /* --tls-cert */
    const char *private_key; /* --tls-key */
};

struct secrets {
    struct secret_files files;
    pthread_mutex_t lock;  /* guards the two pointers, and the keys while they are read */
    struct api_keys *keys; /* NULL: no request needs one */
    struct tls_certificate *certificate; /* NULL: the server speaks plain HTTP */
    struct obs_reloads key_reloads, certificate_reloads; /* by SIGHUP */
};

/* Reads all files. Errors, with one line that names the option and the file: ATTN_E_VALUE
 * when the options do not go together, when TLS is not built in, or when others may write
 * a file; ATTN_E_FORMAT, ATTN_E_IO, ATTN_E_NOMEM. */
attn_status secrets_init(struct secrets *secrets, const struct secret_files *files,
                         attn_error *ret_error);

/* Accepts a zeroed struct. */
void secrets_deinit(struct secrets *secrets);

/* Reads all files again. What cannot be read stays as it was, and a warning says why.
 * Connections keep their certificate, requests that have begun are not checked again. Any
 * thread may call it. */
void secrets_reload(struct secrets *secrets);

/* Whether the request has a key, if it needs one; ret_name is then that key's name, or
 * "". Otherwise *ret_problem is set (401), and *ret_challenge to the value of
 * WWW-Authenticate, which is constant. Any thread may call it. */
bool secrets_check_key(struct secrets *secrets, struct MHD_Connection *connection,
                       char ret_name[static API_KEY_NAME_MAX + 1],
                       const char **ret_challenge, struct wire_problem *ret_problem);

/* Whether a key has that name; true for "" where no request needs one. Any thread may
 * call it. */
bool secrets_has_name(struct secrets *secrets, const char *name);

/* Whether the server speaks TLS. */
bool secrets_has_certificate(const struct secrets *secrets);

/* Returns the certificate for a new connection, which the caller releases; NULL without
 * TLS. Any thread may call it. */
struct tls_certificate *secrets_acquire_certificate(struct secrets *secrets);
