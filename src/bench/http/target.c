/* SPDX-License-Identifier: Apache-2.0 */
/* target.c: takes a URL apart, and tries which of its addresses accepts connections. */
#include "bench/http/target.h"

#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#define HTTP_SCHEME "http://"
#define CONNECT_S   1

bool load_path_is_valid(const char *path) {
    size_t size = 0;

    while (isgraph((unsigned char)path[size]) && path[size] != '#')
        size++;
    return path[0] == '/' && path[size] == '\0' && size <= LOAD_PATH_MAX;
}

attn_status load_target_parse(const char *url, struct load_target *ret_target,
                              attn_error *ret_error) {
    bool has_scheme = strncmp(url, HTTP_SCHEME, strlen(HTTP_SCHEME)) == 0;
    const char *at = url + (has_scheme ? strlen(HTTP_SCHEME) : 0);
    size_t size = listen_is_unix(url) ? strlen(url) : strcspn(at, "/");

    *ret_target = (struct load_target){.path = at[size] == '/' ? at + size : "/"};
    if (strncmp(url, "https://", 8) == 0)
        return error_set(
            ret_error, ATTN_E_VALUE,
            "%.200s: attnd-bench http speaks no TLS; measure an address with "
            "http://, behind the proxy that ends TLS",
            url);
    if (size >= sizeof ret_target->listen || !load_path_is_valid(ret_target->path))
        return error_set(ret_error, ATTN_E_VALUE,
                         "'%.200s' has a path that cannot be sent; it begins with '/', "
                         "and has no blanks, no '#' and at most %d bytes",
                         url, LOAD_PATH_MAX);
    memcpy(ret_target->listen, at, size);
    return listen_check("URL", ret_target->listen, ret_error);
}

/* Connects once. Returns 0, also where a server is too busy to accept, or the number of
 * the error. */
static int try_target(const struct load_target *target) {
    const struct timeval timeout = {.tv_sec = CONNECT_S};
    int fd = socket(target->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool done =
        fd >= 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) == 0 &&
        (target->from_size == 0 ||
         bind(fd, (const struct sockaddr *)&target->from, target->from_size) == 0) &&
        connect(fd, (const struct sockaddr *)&target->to, target->to_size) == 0;
    int number = done || errno == EINPROGRESS || errno == EAGAIN ? 0 : errno;

    if (fd >= 0)
        close(fd);
    return number;
}

/* Resolves a numeric address of this machine. */
static bool set_source(const char *source, struct load_target *target) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;

    if (listen_is_unix(target->listen) || getaddrinfo(source, NULL, &hints, &found) != 0)
        return false;
    memcpy(&target->from, found->ai_addr, found->ai_addrlen);
    target->from_size = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

/* Tries the addresses of a host, one after the other. Returns NULL, or why all fail. */
static const char *try_host(struct load_target *target) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_family = target->from.ss_family};
    char host[NI_MAXHOST], port[NI_MAXSERV];
    struct addrinfo *found;

    listen_split("URL", target->listen, host, port, NULL); /* as it was checked */
    int number = getaddrinfo(host, port, &hints, &found);
    if (number != 0)
        return gai_strerror(number);
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        memcpy(&target->to, at->ai_addr, at->ai_addrlen);
        target->to_size = at->ai_addrlen;
        number = try_target(target);
        if (number == 0)
            break;
    }
    freeaddrinfo(found);
    return number == 0 ? NULL : strerror(number);
}

attn_status load_target_find(struct load_target *target, const char *source,
                             attn_error *ret_error) {
    const char *reason;

    if (source != NULL && !set_source(source, target))
        return error_set(ret_error, ATTN_E_VALUE,
                         "--source: '%.100s' is not an IP address, or the URL is a Unix "
                         "socket, which needs none",
                         source);
    if (listen_is_unix(target->listen)) {
        listen_get_path(target->listen, (struct sockaddr_un *)&target->to);
        target->to_size = sizeof(struct sockaddr_un);
        int number = try_target(target);
        reason = number == 0 ? NULL : strerror(number);
    } else {
        reason = try_host(target);
    }
    if (reason == NULL)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_IO,
                     "cannot connect to %.300s: %s; check the address, and that the "
                     "server runs",
                     target->listen, reason);
}
