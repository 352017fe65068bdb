/* SPDX-License-Identifier: Apache-2.0 */
/* health.c: attnd health, the health check of a container that has no HTTP client. */
#include "cli/commands.h"
#include "http/net/listen.h"
#include "tls/client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define TIMEOUT_S 5

/* Connects to an address. Returns -1 with errno set on failure. */
static int connect_to_address(const struct sockaddr *address, socklen_t size) {
    const struct timeval timeout = {.tv_sec = TIMEOUT_S};
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 &&
        (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0 ||
         setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0 ||
         connect(fd, address, size) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        fd = -1;
    }
    return fd;
}

/* Connects to HOST:PORT or unix:PATH; in Linux 0.0.0.0 and [::] mean this machine.
 * Returns -1 with errno set on failure. */
static int connect_to_server(const char *listen) {
    if (listen_is_unix(listen)) {
        struct sockaddr_un path;
        listen_get_path(listen, &path);
        return connect_to_address((const struct sockaddr *)&path, sizeof path);
    }

    struct addrinfo *address;
    if (listen_find_addresses("", listen, &address, NULL) != ATTN_OK) {
        errno = EHOSTUNREACH;
        return -1;
    }
    int fd = connect_to_address(address->ai_addr, address->ai_addrlen);
    freeaddrinfo(address);
    return fd;
}

/* Sends a request over plain HTTP and reads the beginning of its reply. */
static bool plain_request(int fd, const char *request, char *ret_reply, size_t size) {
    ssize_t length = (ssize_t)strlen(request);
    return send(fd, request, (size_t)length, MSG_NOSIGNAL) == length &&
           recv(fd, ret_reply, size - 1, MSG_WAITALL) > 0;
}

int command_health(const struct config *config) {
    static const char request[] = "GET /v2/health/ready HTTP/1.1\r\nHost: attnd\r\n"
                                  "Connection: close\r\n\r\n";
    bool admin = config->admin_listen != NULL;
    const char *listen = admin ? config->admin_listen : config->listens.items[0];
    bool is_unix = listen_is_unix(listen);
    bool tls = !admin && !is_unix && config->tls_cert != NULL;
    char reply[64] = "";

    int fd = connect_to_server(listen);
    if (fd < 0) {
        const char *scheme = tls ? "https://" : "http://";
        fprintf(stderr, "attnd: no server listens at %s%s: %s\n", is_unix ? "" : scheme,
                listen, strerror(errno));
        return 1;
    }

    /* It asks its own machine, so it does not check whose certificate it gets. */
    bool ready = (tls ? tls_request(fd, request, reply, sizeof reply)
                      : plain_request(fd, request, reply, sizeof reply)) &&
                 strncmp(reply, "HTTP/1.1 200 ", strlen("HTTP/1.1 200 ")) == 0;
    close(fd);
    if (!ready && strncmp(reply, "HTTP/1.1 ", strlen("HTTP/1.1 ")) != 0)
        fprintf(stderr,
                "attnd: no reply in %s from %s; give the --tls-cert and the "
                "--admin-listen that the server has\n",
                tls ? "TLS" : "plain HTTP", listen);
    printf("%s: %s\n", listen, ready ? "ready" : "not ready");
    return ready ? 0 : 1;
}
