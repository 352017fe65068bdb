/* SPDX-License-Identifier: Apache-2.0 */
/* authority.h: HOST or HOST:PORT (RFC 3986, section 3.2), in which an IPv6 address has
 * brackets. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define AUTHORITY_PORT_MAX 65535

struct authority {
    const char *host; /* borrowed, without brackets */
    size_t host_size; /* at least 1 */
    bool brackets;
    bool has_port;
    unsigned port; /* above AUTHORITY_PORT_MAX for one of more than 5 digits */
};

/* Splits all of `size` bytes. The caller checks the port, and of which characters the
 * host is; without brackets it has no colon. Returns false when it is malformed. */
static inline bool authority_split(const char *text, size_t size,
                                   struct authority *ret_parts) {
    const char *end = text + size;
    bool brackets = size > 0 && *text == '[';
    const char *host = text + brackets;
    const char *stop = memchr(host, brackets ? ']' : ':', (size_t)(end - host));
    if (stop == NULL && brackets)
        return false;
    const char *colon = stop == NULL ? end : stop + brackets, *digit = colon + 1;
    unsigned port = 0;

    for (; digit < end && *digit >= '0' && *digit <= '9'; digit++)
        port = digit - colon > 5 ? AUTHORITY_PORT_MAX + 1
                                 : 10 * port + (unsigned)(*digit - '0');
    *ret_parts = (struct authority){.host = host,
                                    .host_size = (size_t)(colon - brackets - host),
                                    .brackets = brackets,
                                    .has_port = colon < end,
                                    .port = port};
    return ret_parts->host_size > 0 &&
           (colon == end || (*colon == ':' && digit == end && digit > colon + 1));
}
