/* SPDX-License-Identifier: Apache-2.0 */
/* address.c: resolves names, and tries which address accepts connections. */
#include "bench/http/address.h"

#include "base/error.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECT_S 1

/* Connects once. Returns 0, also where a server is too busy to accept, or the number of
 * the error. */
static int try_address(const struct load_address *address) {
    const struct timeval timeout = {.tv_sec = CONNECT_S};
    int fd = socket(address->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool done =
        fd >= 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
        (address->from_size == 0 ||
         bind(fd, (const struct sockaddr *)&address->from, address->from_size) == 0) &&
        connect(fd, (const struct sockaddr *)&address->to, address->to_size) == 0;
    bool busy = errno == EINPROGRESS || errno == EAGAIN;
    int number = done || busy ? 0 : errno;

    if (fd >= 0)
        close(fd);
    return number;
}

static attn_status set_source(const char *source, struct load_address *address,
                              attn_error *ret_error) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;

    if (getaddrinfo(source, NULL, &hints, &found) != 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--source: '%.100s' is not an IP address", source);
    memcpy(&address->from, found->ai_addr, found->ai_addrlen);
    address->from_size = found->ai_addrlen;
    freeaddrinfo(found);
    return ATTN_OK;
}

static attn_status refuse_address(const struct load_url *url, const char *reason,
                                  attn_error *ret_error) {
    return error_set(ret_error, ATTN_E_IO,
                     "cannot connect to %.300s: %s; check the address, and that the "
                     "server runs",
                     url->is_unix ? url->host : url->authority, reason);
}

static attn_status find_socket(const struct load_url *url,
                               struct load_address *ret_address, attn_error *ret_error) {
    struct sockaddr_un *to = (struct sockaddr_un *)&ret_address->to;

    to->sun_family = AF_UNIX;
    snprintf(to->sun_path, sizeof to->sun_path, "%.*s", (int)sizeof to->sun_path - 1,
             url->host);
    ret_address->to_size = sizeof *to;
    int number = try_address(ret_address);
    return number == 0 ? ATTN_OK : refuse_address(url, strerror(number), ret_error);
}

attn_status load_address_find(const struct load_url *url, const char *source,
                              struct load_address *ret_address, attn_error *ret_error) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int number = 0;

    *ret_address = (struct load_address){.to_size = 0};
    if (url->is_unix && source != NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--source is for http:// addresses; leave it out");
    if (url->is_unix)
        return find_socket(url, ret_address, ret_error);
    if (source != NULL) {
        attn_status status = set_source(source, ret_address, ret_error);
        if (status != ATTN_OK)
            return status;
        hints.ai_family = ret_address->from.ss_family;
    }

    int result = getaddrinfo(url->host, url->port, &hints, &found);
    if (result != 0)
        return refuse_address(url, gai_strerror(result), ret_error);
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        memcpy(&ret_address->to, at->ai_addr, at->ai_addrlen);
        ret_address->to_size = at->ai_addrlen;
        number = try_address(ret_address);
        if (number == 0)
            break;
    }
    freeaddrinfo(found);
    return number == 0 ? ATTN_OK : refuse_address(url, strerror(number), ret_error);
}
