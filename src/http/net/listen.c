/* SPDX-License-Identifier: Apache-2.0 */
/* listen.c: parses HOST:PORT, and opens one listening socket per HTTP thread. */
#include "http/net/listen.h"

#include "base/error.h"
#include "http/net/address.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Splits `listen` into host and port. Returns ATTN_E_VALUE when it is malformed. */
static attn_status parse_listen(const char *option, const char *listen,
                                char host[static NI_MAXHOST],
                                char port[static NI_MAXSERV], attn_error *ret_error) {
    const char *colon = strrchr(listen, ':');
    const char *first = listen, *last = colon;
    bool brackets = colon != NULL && *listen == '[' && colon > listen && colon[-1] == ']';
    if (brackets) {
        first++;
        last--;
    }

    size_t port_size = colon != NULL ? strlen(colon + 1) : 0;
    if (colon == NULL || last <= first || last - first >= NI_MAXHOST || port_size == 0 ||
        strspn(colon + 1, "0123456789") != port_size ||
        (!brackets && memchr(first, ':', (size_t)(last - first)) != NULL))
        return error_set(
            ret_error, ATTN_E_VALUE,
            "%s: '%s' is not HOST:PORT; an IPv6 address needs brackets: [::1]:8080",
            option, listen);

    if (port_size > 5 || atoi(colon + 1) > 65535)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s: the port of '%s' is out of range; it must be 0 to 65535",
                         option, listen);

    memcpy(host, first, (size_t)(last - first));
    host[last - first] = '\0';
    memcpy(port, colon + 1, port_size + 1);
    return ATTN_OK;
}

attn_status listen_check(const char *option, const char *listen, attn_error *ret_error) {
    char host[NI_MAXHOST], port[NI_MAXSERV];
    return parse_listen(option, listen, host, port, ret_error);
}

bool listen_is_loopback(const char *listen) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    char host[NI_MAXHOST], port[NI_MAXSERV];
    struct addrinfo *addresses;
    bool is_loopback = true;

    if (parse_listen("", listen, host, port, NULL) != ATTN_OK ||
        getaddrinfo(host, port, &hints, &addresses) != 0)
        return false;
    for (struct addrinfo *each = addresses; each != NULL; each = each->ai_next) {
        const struct address address = address_of_socket(each->ai_addr);
        is_loopback = is_loopback && address_is_loopback(&address);
    }
    freeaddrinfo(addresses);
    return is_loopback;
}

/* Opens a socket that listens. The first one is bound alone, so that it fails where any
 * other socket listens. Only then it shares its address, whose port may be any free one,
 * with those that follow. Returns -1 with errno set. */
static int open_listening(struct addrinfo *address, bool is_first) {
    int on = 1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        (is_first || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0) &&
        bind(fd, address->ai_addr, address->ai_addrlen) == 0 &&
        listen(fd, SOMAXCONN) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 &&
        getsockname(fd, address->ai_addr, &address->ai_addrlen) == 0)
        return fd;

    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* Opens the sockets. When it returns false, errno is set and none is left open. A second
 * attnd must not share the address, as each would get some of the requests. */
static bool open_sockets(struct addrinfo *address, size_t count, int *ret_fds) {
    for (size_t opened = 0; opened < count; opened++) {
        ret_fds[opened] = open_listening(address, opened == 0);
        if (ret_fds[opened] >= 0)
            continue;

        int error = errno;
        while (opened > 0)
            close(ret_fds[--opened]);
        errno = error;
        return false;
    }
    return true;
}

attn_status listen_open(const char *option, const char *listen, size_t count,
                        int *ret_fds, char *ret_address, size_t size,
                        attn_error *ret_error) {
    char host[NI_MAXHOST], port[NI_MAXSERV];
    attn_status status = parse_listen(option, listen, host, port, ret_error);
    if (status != ATTN_OK)
        return status;

    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *address;
    int failure = getaddrinfo(host, port, &hints, &address);
    if (failure != 0)
        return error_set(ret_error, ATTN_E_VALUE, "%s: unknown host '%s': %s", option,
                         host, gai_strerror(failure));

    if (!open_sockets(address, count, ret_fds)) {
        bool in_use = errno == EADDRINUSE;
        status = error_set(ret_error, ATTN_E_IO, "cannot listen on %s: %s%s%s%s", listen,
                           strerror(errno), in_use ? "; is another server running? " : "",
                           in_use ? option : "", in_use ? " sets another port" : "");
    } else if (getnameinfo(address->ai_addr, address->ai_addrlen, NULL, 0, port,
                           sizeof port, NI_NUMERICSERV) == 0) {
        snprintf(ret_address, size, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host,
                 port);
    }
    freeaddrinfo(address);
    return status;
}
