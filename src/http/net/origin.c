/* SPDX-License-Identifier: Apache-2.0 */
/* origin.c: reads and compares origins, and decides whether a web page may send a
 * request. */
#include "http/net/origin.h"

#include "base/authority.h"
#include "base/error.h"
#include "http/net/address.h"
#include "http/net/framing.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS  "0123456789"

static bool same_text(const char *a, size_t a_size, const char *b, size_t b_size) {
    return a_size == b_size && strncasecmp(a, b, a_size) == 0;
}

/* Returns the port of a scheme without one; 0 when it is neither http nor https. */
static unsigned default_port(const struct origin *origin) {
    if (same_text(origin->scheme, origin->scheme_size, "http", 4))
        return 80;
    return same_text(origin->scheme, origin->scheme_size, "https", 5) ? 443 : 0;
}

/* Reads host[:port], the whole of `size` bytes. The scheme is set. */
static bool read_host(const char *text, size_t size, struct origin *origin) {
    struct authority parts;
    struct address address;
    if (!authority_split(text, size, &parts))
        return false;

    origin->host = text;
    origin->host_size = parts.host_size + 2 * (size_t)parts.brackets;
    origin->port = parts.has_port ? parts.port : default_port(origin);
    if (parts.has_port && (parts.port == 0 || parts.port > AUTHORITY_PORT_MAX))
        return false;
    return parts.brackets ? address_read(text, origin->host_size, &address)
                          : strspn(text, LETTERS DIGITS "-._") >= parts.host_size;
}

static bool read_origin(const char *text, struct origin *ret_origin) {
    size_t scheme = strspn(text, LETTERS DIGITS "+-.");

    if (strspn(text, LETTERS) == 0 || strncmp(text + scheme, "://", 3) != 0)
        return false;
    *ret_origin = (struct origin){.scheme = text, .scheme_size = scheme};
    return read_host(text + scheme + 3, strlen(text + scheme + 3), ret_origin);
}

static bool same_origin(const struct origin *a, const struct origin *b) {
    return same_text(a->scheme, a->scheme_size, b->scheme, b->scheme_size) &&
           same_text(a->host, a->host_size, b->host, b->host_size) && a->port == b->port;
}

attn_status origins_read(char *const *texts, size_t count, struct origins *ret_origins,
                         attn_error *ret_error) {
    struct origin *items = calloc(count + 1, sizeof *items);
    if (items == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "--cors-origin: out of memory");

    for (size_t i = 0; i < count; i++) {
        if (read_origin(texts[i], &items[i]))
            continue;
        free(items);
        if (strcmp(texts[i], "*") == 0 || strcasecmp(texts[i], "null") == 0)
            return error_set(ret_error, ATTN_E_VALUE,
                             "--cors-origin: '%s' would let every web page use the "
                             "server; name each origin, as in https://example.org",
                             texts[i]);
        return error_set(ret_error, ATTN_E_VALUE,
                         "--cors-origin: '%s' is not an origin; write scheme, host and "
                         "port alone, as in https://example.org or http://localhost:3000",
                         texts[i]);
    }
    *ret_origins = (struct origins){items, count};
    return ATTN_OK;
}

bool origin_is_in(const char *text, const struct origins *origins) {
    struct origin origin;
    if (!read_origin(text, &origin))
        return false;

    for (size_t i = 0; i < origins->count; i++) {
        if (same_origin(&origin, &origins->items[i]))
            return true;
    }
    return false;
}

bool origin_is_own(const char *text, const char *host, size_t size, bool over_loopback) {
    struct origin origin, own;
    struct address address;
    if (!read_origin(text, &origin) || default_port(&origin) == 0)
        return false;

    own = origin; /* its scheme; the host is read next */
    if (!read_host(host, size, &own) || !same_origin(&origin, &own))
        return false;
    /* No attacker can let these resolve to an address of his choice. */
    return !over_loopback || same_text(origin.host, origin.host_size, "localhost", 9) ||
           address_read(origin.host, origin.host_size, &address);
}

/* --- of a request --- */

/* Whether the peer reaches the server by an address of its own machine. */
static bool is_over_loopback(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct sockaddr_storage local = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof local;

    if (getsockname(info->connect_fd, (struct sockaddr *)&local, &size) != 0)
        return true; /* the stricter rule */
    if (local.ss_family == AF_UNIX)
        return true;
    const struct address address = address_of_socket((const struct sockaddr *)&local);
    return address_is_loopback(&address);
}

/* Whether `origin` is the origin of the server that the request addresses. The host of a
 * whole URL goes before the header Host (RFC 9112, section 3.2.2). */
static bool is_own_origin(struct MHD_Connection *connection, const char *url,
                          const char *origin) {
    size_t size;
    const char *host = framing_host(url, &size);

    if (host == NULL) {
        host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                           MHD_HTTP_HEADER_HOST);
        size = host != NULL ? strlen(host) : 0;
    }
    return host != NULL &&
           origin_is_own(origin, host, size, is_over_loopback(connection));
}

bool origin_check(struct MHD_Connection *connection, const char *url,
                  const struct origins *allowed, const char **ret_cross,
                  struct wire_problem *ret_problem) {
    const char *origin =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    *ret_cross = NULL;
    if (origin == NULL || is_own_origin(connection, url, origin))
        return true;
    if (origin_is_in(origin, allowed)) {
        *ret_cross = origin;
        return true;
    }
    return wire_problem_set(ret_problem, WIRE_E_ORIGIN_NOT_ALLOWED,
                            MHD_HTTP_HEADER_ORIGIN,
                            "requests of web pages from '%.100s' are refused; allow that "
                            "origin with --cors-origin, or load the page from the "
                            "server's IP address",
                            origin);
}
