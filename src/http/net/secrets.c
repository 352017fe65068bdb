/* SPDX-License-Identifier: Apache-2.0 */
/* secrets.c: reads the files of keys and certificates, and replaces what they held. */
#include "http/net/secrets.h"

#include "base/buf.h"
#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((size_t)1024 * 1024)
#define DAY_SECONDS    86400

/* --- files --- */

/* Explains why open() of a file at `path` failed with `number`. */
static attn_status refuse_secrets(const char *option, const char *path, int number,
                                  attn_error *ret_error) {
    unsigned long user = (unsigned long)geteuid();
    struct stat stat;

    if (number != EACCES)
        return error_set(ret_error, ATTN_E_IO, "%s: cannot open %s: %s", option, path,
                         strerror(number));
    /* lstat() needs no permission on the file, but on the folders before it */
    if (lstat(path, &stat) != 0)
        return error_set(ret_error, ATTN_E_IO,
                         "%s: user %lu cannot open %s: %s; open the folders on its "
                         "path, as in chmod a+x FOLDER",
                         option, user, path, strerror(number));
    return error_set(ret_error, ATTN_E_IO,
                     "%s: user %lu cannot open %s: %s; let that user read it, as in "
                     "chown %lu FILE, or with LoadCredential= of systemd",
                     option, user, path, strerror(number), user);
}

/* Checks an open file before it is read. */
static attn_status check_file(int fd, const char *option, const char *path,
                              attn_error *ret_error) {
    struct stat stat;
    if (fstat(fd, &stat) != 0)
        return error_set(ret_error, ATTN_E_IO, "%s: cannot read %s: %s", option, path,
                         strerror(errno));
    if (!S_ISREG(stat.st_mode))
        return error_set(ret_error, ATTN_E_VALUE, "%s: %s is not a regular file", option,
                         path);
    if ((stat.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: others than its owner may write %s; run chmod go-w %s",
                         option, path, path);
    if ((stat.st_mode & S_IROTH) != 0 && strcmp(option, "--tls-cert") != 0)
        log_write(LOG_WARN, "every user can read a secret", LOG_TEXT("option", option),
                  LOG_TEXT("file", path), LOG_TEXT("remedy", "chmod o-r FILE"));
    return ATTN_OK;
}

/* Reads an open file to its end. The buffer never moves: it would leave what it holds
 * behind, in memory that is free. */
static attn_status read_to_end(int fd, const char *option, const char *path,
                               struct buf *text, attn_error *ret_error) {
    if (buf_reserve(text, FILE_BYTES_MAX) != ATTN_OK)
        return error_set(ret_error, ATTN_E_NOMEM, "%s: memory is short for %s", option,
                         path);
    for (;;) {
        size_t left = text->capacity - text->size;
        if (left <= 1)
            return error_set(ret_error, ATTN_E_VALUE, "%s: %s is larger than 1 MiB",
                             option, path);
        ssize_t got = read(fd, text->data + text->size, left - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(ret_error, ATTN_E_IO, "%s: cannot read %s: %s", option, path,
                             strerror(errno));
        text->size += (size_t)got;
        text->data[text->size] = '\0'; /* past the text; there is room for it */
        if (got == 0)
            return ATTN_OK;
    }
}

/* Reads a file into `text`, an empty buffer, and puts a NUL byte behind it. */
static attn_status read_file(const char *option, const char *path, struct buf *text,
                             attn_error *ret_error) {
    /* Opening a pipe would wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return refuse_secrets(option, path, errno, ret_error);

    attn_status status = check_file(fd, option, path, ret_error);
    if (status == ATTN_OK)
        status = read_to_end(fd, option, path, text, ret_error);
    close(fd);
    return status;
}

static void forget(struct buf *text) {
    if (text->data != NULL)
        explicit_bzero(text->data, text->capacity);
    buf_deinit(text);
}

/* --- replacing --- */

/* Reads the keys, and puts them in the place of those that were there. */
static attn_status load_keys(struct secrets *secrets, attn_error *ret_error) {
    const char *path = secrets->files.keys;
    struct api_keys *keys;
    struct buf text;
    attn_error detail;

    buf_init(&text, FILE_BYTES_MAX);
    attn_status status = read_file("--api-key-file", path, &text, ret_error);
    if (status == ATTN_OK) {
        status = api_keys_parse(text.data, text.size, &keys, &detail);
        if (status != ATTN_OK)
            error_set(ret_error, status, "--api-key-file: %s: %s", path, detail.text);
    }
    forget(&text);
    if (status != ATTN_OK)
        return status;

    pthread_mutex_lock(&secrets->lock);
    struct api_keys *old = secrets->keys;
    secrets->keys = keys;
    pthread_mutex_unlock(&secrets->lock);
    api_keys_destroy(old);
    log_write(LOG_INFO, "keys", LOG_NUMBER("count", api_keys_count(keys)));
    return ATTN_OK;
}

/* Reads the certificate, and puts it in the place of the one that was there. */
static attn_status load_certificate(struct secrets *secrets, attn_error *ret_error) {
    const struct secret_files *files = &secrets->files;
    struct tls_certificate *certificate;
    struct buf chain, private_key;
    attn_error detail;

    buf_init(&chain, FILE_BYTES_MAX);
    buf_init(&private_key, FILE_BYTES_MAX);
    attn_status status = read_file("--tls-cert", files->certificate, &chain, ret_error);
    if (status == ATTN_OK)
        status = read_file("--tls-key", files->private_key, &private_key, ret_error);
    if (status == ATTN_OK) {
        status =
            tls_certificate_create(chain.data, private_key.data, &certificate, &detail);
        if (status != ATTN_OK)
            error_set(ret_error, status, "--tls-cert %s, --tls-key %s: %s",
                      files->certificate, files->private_key, detail.text);
    }
    forget(&private_key);
    buf_deinit(&chain);
    if (status != ATTN_OK)
        return status;

    pthread_mutex_lock(&secrets->lock);
    struct tls_certificate *old = secrets->certificate;
    secrets->certificate = certificate;
    pthread_mutex_unlock(&secrets->lock);
    tls_certificate_release(old);
    int64_t seconds = tls_certificate_expiry(certificate) - (int64_t)time(NULL);
    log_write(seconds > DAY_SECONDS ? LOG_INFO : LOG_WARN, "certificate",
              LOG_NUMBER("days_left", seconds / DAY_SECONDS));
    return ATTN_OK;
}

/* Checks what can be known without the files. */
static attn_status check_pairing(const struct secret_files *files,
                                 attn_error *ret_error) {
    if ((files->certificate == NULL) != (files->private_key == NULL))
        return error_set(ret_error, ATTN_E_VALUE,
                         "--tls-cert and --tls-key go together; give both");
    if (files->certificate == NULL)
        return ATTN_OK;
    if (!tls_is_built() || MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--tls-cert: %s has no TLS; build it with GnuTLS, or put a "
                         "proxy with TLS before attnd",
                         tls_is_built() ? "this libmicrohttpd" : "this attnd");
    return ATTN_OK;
}

attn_status secrets_init(struct secrets *secrets, const struct secret_files *files,
                         attn_error *ret_error) {
    *secrets = (struct secrets){.files = *files};
    pthread_mutex_init(&secrets->lock, NULL); /* cannot fail without attributes */

    attn_status status = check_pairing(files, ret_error);
    if (status == ATTN_OK && files->keys != NULL)
        status = load_keys(secrets, ret_error);
    if (status == ATTN_OK && files->certificate != NULL)
        status = load_certificate(secrets, ret_error);
    return status;
}

void secrets_deinit(struct secrets *secrets) {
    api_keys_destroy(secrets->keys);
    tls_certificate_release(secrets->certificate);
}

void secrets_reload(struct secrets *secrets) {
    const struct {
        const char *path, *failure;
        attn_status (*load)(struct secrets *secrets, attn_error *ret_error);
        struct obs_reloads *reloads;
    } kinds[] = {
        {secrets->files.keys, "keys stay as they were", load_keys, &secrets->key_reloads},
        {secrets->files.certificate, "certificate stays as it was", load_certificate,
         &secrets->certificate_reloads}};
    attn_error error;

    for (size_t i = 0; i < 2; i++) {
        if (kinds[i].path == NULL)
            continue;
        bool done = kinds[i].load(secrets, &error) == ATTN_OK;
        obs_count_reload(kinds[i].reloads, done);
        if (!done)
            log_write(LOG_WARN, kinds[i].failure, LOG_TEXT("reason", error.text));
    }
}

bool secrets_has_name(struct secrets *secrets, const char *name) {
    if (secrets->files.keys == NULL)
        return *name == '\0';
    pthread_mutex_lock(&secrets->lock);
    bool found = api_keys_have_name(secrets->keys, name);
    pthread_mutex_unlock(&secrets->lock);
    return found;
}

bool secrets_has_certificate(const struct secrets *secrets) {
    return secrets->files.certificate != NULL;
}

struct tls_certificate *secrets_acquire_certificate(struct secrets *secrets) {
    if (!secrets_has_certificate(secrets))
        return NULL;
    pthread_mutex_lock(&secrets->lock);
    struct tls_certificate *certificate = tls_certificate_acquire(secrets->certificate);
    pthread_mutex_unlock(&secrets->lock);
    return certificate;
}

/* --- requests --- */

/* Finds the token of "Bearer TOKEN" (RFC 6750, section 2.1). Returns its size; 0 when the
 * value is not just that. */
static size_t find_token(const char *value, const char **ret_token) {
    static const char scheme[] = "Bearer";
    size_t size = sizeof scheme - 1;

    if (value == NULL || strncasecmp(value, scheme, size) != 0 || value[size] != ' ')
        return 0;
    *ret_token = value + size + strspn(value + size, " ");
    size = strcspn(*ret_token, " \t");
    return (*ret_token)[size + strspn(*ret_token + size, " \t")] == '\0' ? size : 0;
}

bool secrets_check_key(struct secrets *secrets, struct MHD_Connection *connection,
                       char ret_name[static API_KEY_NAME_MAX + 1],
                       const char **ret_challenge, struct wire_problem *ret_problem) {
    ret_name[0] = '\0';
    if (secrets->files.keys == NULL)
        return true;

    const char *token;
    size_t size = find_token(MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                                         MHD_HTTP_HEADER_AUTHORIZATION),
                             &token);
    if (size == 0) {
        *ret_challenge = SECRETS_NO_KEY;
        return wire_problem_set(ret_problem, WIRE_E_UNAUTHORIZED,
                                MHD_HTTP_HEADER_AUTHORIZATION,
                                "this server needs a key; send it as "
                                "'Authorization: Bearer KEY'");
    }

    pthread_mutex_lock(&secrets->lock);
    bool found = api_keys_find(secrets->keys, token, size, ret_name);
    pthread_mutex_unlock(&secrets->lock);
    if (found)
        return true;
    *ret_challenge = SECRETS_WRONG_KEY;
    return wire_problem_set(
        ret_problem, WIRE_E_UNAUTHORIZED, MHD_HTTP_HEADER_AUTHORIZATION,
        "this server does not know the key; ask its operator for one");
}
