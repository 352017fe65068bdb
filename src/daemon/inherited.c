/* SPDX-License-Identifier: Apache-2.0 */
/* inherited.c: compares the addresses of sockets with those of --listen. */
#include "daemon/inherited.h"

#include "base/error.h"
#include "http/net/address.h"
#include "http/net/listen.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */
#define FDS_MAX  1024

union socket_address {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
    struct sockaddr_un file;
    struct sockaddr_storage storage;
};

/* Returns how many sockets this process was given. */
static int count_sockets(void) {
    const char *fds = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    if (fds == NULL || pid == NULL || strtoll(pid, NULL, 10) != getpid())
        return 0;
    long long count = strtoll(fds, NULL, 10);
    return count > 0 && count <= FDS_MAX ? (int)count : 0;
}

static bool is_same(const union socket_address *a, const struct sockaddr *b) {
    const union socket_address *other = (const union socket_address *)b;
    if (a->any.sa_family != b->sa_family)
        return false;
    if (b->sa_family == AF_INET)
        return a->ipv4.sin_port == other->ipv4.sin_port &&
               a->ipv4.sin_addr.s_addr == other->ipv4.sin_addr.s_addr;
    return b->sa_family == AF_INET6 && a->ipv6.sin6_port == other->ipv6.sin6_port &&
           memcmp(&a->ipv6.sin6_addr, &other->ipv6.sin6_addr, 16) == 0;
}

/* Whether a socket is bound to one of the addresses of `listen`. */
static bool is_bound_to(const union socket_address *address, const char *listen) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char host[NI_MAXHOST], port[NI_MAXSERV];
    struct addrinfo *addresses;
    struct sockaddr_un path;
    bool found = false;

    if (listen_is_unix(listen)) {
        listen_get_path(listen, &path);
        return address->any.sa_family == AF_UNIX &&
               strncmp(address->file.sun_path, path.sun_path, sizeof path.sun_path) == 0;
    }
    if (listen_split("", listen, host, port, NULL) != ATTN_OK ||
        getaddrinfo(host, port, &hints, &addresses) != 0)
        return false;
    for (struct addrinfo *each = addresses; each != NULL; each = each->ai_next)
        found = found || is_same(address, each->ai_addr);
    freeaddrinfo(addresses);
    return found;
}

/* Writes where a socket listens, for an error. */
static void print_socket(const union socket_address *address,
                         char ret_text[LISTEN_TEXT_MAX]) {
    char host[NI_MAXHOST], port[NI_MAXSERV];
    ret_text[0] = '\0';
    if (address->any.sa_family == AF_UNIX)
        snprintf(ret_text, LISTEN_TEXT_MAX, ADDRESS_UNIX "%.*s",
                 (int)sizeof address->file.sun_path, address->file.sun_path);
    else if (getnameinfo(&address->any, sizeof *address, host, sizeof host, port,
                         sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(ret_text, LISTEN_TEXT_MAX,
                 strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

/* Gives a socket to the address that it is bound to. */
static attn_status assign(int fd, char *const *listens, size_t count, int *ret_fds,
                          attn_error *ret_error) {
    union socket_address address = {.storage = {0}};
    socklen_t size = sizeof address;
    char text[LISTEN_TEXT_MAX];
    int listening = 0;
    socklen_t listening_size = sizeof listening;

    if (getsockname(fd, &address.any, &size) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &listening_size) != 0 ||
        !listening)
        return error_set(
            ret_error, ATTN_E_VALUE,
            "descriptor %d of LISTEN_FDS is not a socket that listens; let the "
            "socket unit have ListenStream= alone",
            fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    for (size_t i = 0; i < count; i++) {
        if (ret_fds[i] < 0 && is_bound_to(&address, listens[i])) {
            ret_fds[i] = fd;
            return ATTN_OK;
        }
    }
    print_socket(&address, text);
    return error_set(ret_error, ATTN_E_VALUE,
                     "the service manager has opened %s, which no --listen names; write "
                     "the address of ListenStream= there, too",
                     text);
}

attn_status inherited_find(char *const *listens, size_t count, int *ret_fds,
                           attn_error *ret_error) {
    int num_sockets = count_sockets();
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < count; i++)
        ret_fds[i] = -1;
    for (int i = 0; i < num_sockets && status == ATTN_OK; i++)
        status = assign(FIRST_FD + i, listens, count, ret_fds, ret_error);
    return status;
}
