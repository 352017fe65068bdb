/* SPDX-License-Identifier: Apache-2.0 */
/* inherited.c: compares the addresses of sockets with those of --listen. */
#include "daemon/inherited.h"

#include "base/error.h"
#include "http/net/address.h"
#include "http/net/listen.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FIRST_FD 3 /* SD_LISTEN_FDS_START */
#define FDS_MAX  1024

/* Returns how many sockets this process was given. */
static int count_sockets(void) {
    const char *fds = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    if (fds == NULL || pid == NULL || strtoll(pid, NULL, 10) != getpid())
        return 0;
    long long count = strtoll(fds, NULL, 10);
    return count > 0 && count <= FDS_MAX ? (int)count : 0;
}

/* Writes where a socket listens, with numbers for host and port; "" of other kinds. */
static void print_socket(const struct sockaddr *address, socklen_t size,
                         char ret_text[LISTEN_TEXT_MAX]) {
    const struct sockaddr_un *file = (const struct sockaddr_un *)address;
    char host[NI_MAXHOST], port[NI_MAXSERV];

    ret_text[0] = '\0';
    if (address->sa_family == AF_UNIX)
        snprintf(ret_text, LISTEN_TEXT_MAX, ADDRESS_UNIX "%.*s",
                 (int)sizeof file->sun_path, file->sun_path);
    else if (getnameinfo(address, size, host, sizeof host, port, sizeof port,
                         NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(ret_text, LISTEN_TEXT_MAX,
                 strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

/* Whether `text`, where a socket listens, is one of the addresses of `listen`. */
static bool is_bound_to(const char *text, const char *listen) {
    char other[LISTEN_TEXT_MAX];
    struct addrinfo *addresses;
    size_t size = strcspn(listen, ","); /* of a path */
    bool found = false;

    if (listen_is_unix(listen))
        return strncmp(text, listen, size) == 0 && text[size] == '\0';
    if (listen_find_addresses("", listen, &addresses, NULL) != ATTN_OK)
        return false;
    for (struct addrinfo *each = addresses; each != NULL; each = each->ai_next) {
        print_socket(each->ai_addr, each->ai_addrlen, other);
        found = found || strcmp(text, other) == 0;
    }
    freeaddrinfo(addresses);
    return found;
}

/* Gives a socket to the address that it is bound to. */
static attn_status assign(int fd, char *const *listens, size_t count, int *ret_fds,
                          attn_error *ret_error) {
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    struct sockaddr *any = (struct sockaddr *)&address;
    socklen_t size = sizeof address;
    char text[LISTEN_TEXT_MAX];
    int listening = 0;
    socklen_t listening_size = sizeof listening;

    if (getsockname(fd, any, &size) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &listening_size) != 0 ||
        !listening)
        return error_set(
            ret_error, ATTN_E_VALUE,
            "descriptor %d of LISTEN_FDS is not a socket that listens; let the "
            "socket unit have ListenStream= alone",
            fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    print_socket(any, sizeof address, text);
    for (size_t i = 0; i < count; i++) {
        if (ret_fds[i] < 0 && is_bound_to(text, listens[i])) {
            ret_fds[i] = fd;
            return ATTN_OK;
        }
    }
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
