/* SPDX-License-Identifier: Apache-2.0 */
/* url.c: parses http:// and unix: addresses. */
#include "bench/http/url.h"

#include "base/authority.h"
#include "base/error.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#define UNIX_SCHEME "unix:"
#define HTTP_SCHEME "http://"
#define HEX_DIGITS  "0123456789abcdefABCDEF"
#define LETTERS     "ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ"

bool load_path_is_valid(const char *path) {
    size_t size = strlen(path);

    if (path[0] != '/' || size > LOAD_PATH_MAX)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (!isgraph((unsigned char)path[i]) || path[i] == '#')
            return false;
    }
    return true;
}

static attn_status parse_socket(const char *path, struct load_url *ret_url,
                                attn_error *ret_error) {
    size_t size = strlen(path), size_max = sizeof((struct sockaddr_un *)0)->sun_path - 1;

    if (size == 0 || size > size_max)
        return error_set(ret_error, ATTN_E_VALUE,
                         "'unix:%.200s' needs the path of a socket, of at most %zu bytes",
                         path, size_max);
    ret_url->is_unix = true;
    memcpy(ret_url->host, path, size + 1);
    snprintf(ret_url->authority, sizeof ret_url->authority, "localhost");
    return ATTN_OK;
}

/* Parses HOST[:PORT], of `size` bytes. */
static bool parse_authority(const char *text, size_t size, struct load_url *ret_url) {
    struct authority parts;
    if (!authority_split(text, size, &parts) || parts.host_size > LOAD_HOST_MAX ||
        strspn(parts.host, parts.brackets ? HEX_DIGITS ":." : HEX_DIGITS LETTERS "-._") <
            parts.host_size)
        return false;

    unsigned port = parts.has_port ? parts.port : 80;
    if (port == 0 || port > AUTHORITY_PORT_MAX)
        return false;
    memcpy(ret_url->host, parts.host, parts.host_size);
    snprintf(ret_url->port, sizeof ret_url->port, "%u", port);
    memcpy(ret_url->authority, text, size);
    return true;
}

attn_status load_url_parse(const char *text, struct load_url *ret_url,
                           attn_error *ret_error) {
    struct load_url url = {.path = "/"};

    if (strncmp(text, UNIX_SCHEME, strlen(UNIX_SCHEME)) == 0) {
        attn_status status = parse_socket(text + strlen(UNIX_SCHEME), &url, ret_error);
        if (status == ATTN_OK)
            *ret_url = url;
        return status;
    }
    if (strncmp(text, "https://", 8) == 0)
        return error_set(
            ret_error, ATTN_E_VALUE,
            "%.200s: attnd-bench http speaks no TLS; measure an address with "
            "http://, behind the proxy that ends TLS",
            text);
    if (strncmp(text, HTTP_SCHEME, strlen(HTTP_SCHEME)) != 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "'%.200s' is not an address; write http://HOST:PORT, or "
                         "unix:SOCKET",
                         text);

    const char *authority = text + strlen(HTTP_SCHEME);
    size_t size = strcspn(authority, "/?#");
    if (size >= sizeof url.authority || !parse_authority(authority, size, &url))
        return error_set(ret_error, ATTN_E_VALUE,
                         "'%.200s' has no valid HOST:PORT; write "
                         "http://127.0.0.1:8080, http://name:8080 or http://[::1]:8080",
                         text);
    const char *path = authority + size;
    if (*path != '\0' && !load_path_is_valid(path))
        return error_set(ret_error, ATTN_E_VALUE,
                         "'%.200s' has a path that cannot be sent; it begins with '/', "
                         "and has no blanks, no '#' and at most %d bytes",
                         text, LOAD_PATH_MAX);
    if (*path != '\0')
        snprintf(url.path, sizeof url.path, "%s", path);
    *ret_url = url;
    return ATTN_OK;
}
