/* SPDX-License-Identifier: Apache-2.0 */
/* hog: one client that takes as many connections of a port of 127.0.0.1 as it can.
 *
 *     hog PORT SOURCE CONNECTIONS SECONDS FILE DEPTH RATE
 *
 * Each connection sends the request in FILE, DEPTH times in a row, and again when the
 * last of these replies has begun. It reads RATE bytes a second with a small receive
 * buffer, or with RATE 0 all that comes. One that is closed comes again at once. SOURCE
 * is the address to send from, e.g. 127.0.0.2.
 *
 * One thread with epoll. Prints how many replies have begun, how many connections were
 * closed, and how many are open at the end. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum {
    SLICES = 20,     /* of a second, in each of which a slow reader reads a part */
    OPEN_AGAIN = 64, /* connections that come again between two looks at the others */
    READ_BYTES = 256 * 1024
};
static const char REPLY[] = "HTTP/1.1 "; /* no body may have it */

struct connection {
    int fd;          /* -1: none */
    bool connected;  /* it can send */
    size_t sent;     /* of the batch */
    size_t num_left; /* replies of the batch that have not begun */
    size_t matched;  /* bytes of REPLY at the end of what was read */
};

static struct {
    struct sockaddr_in to, from;
    char *batch;
    size_t batch_size, depth, rate;
    struct connection *connections;
    size_t num_connections;
    uint64_t num_replies, num_closed;
    int epoll;
    char *scratch;
} hog;

static void check(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "hog: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void read_request(const char *path) {
    FILE *file = fopen(path, "rb");
    check(file != NULL && fseek(file, 0, SEEK_END) == 0, path);
    long size = ftell(file);
    check(size > 0, path);
    rewind(file);

    hog.batch_size = (size_t)size * hog.depth;
    hog.batch = malloc(hog.batch_size);
    check(hog.batch != NULL && fread(hog.batch, (size_t)size, 1, file) == 1, path);
    for (size_t i = 1; i < hog.depth; i++)
        memcpy(hog.batch + i * (size_t)size, hog.batch, (size_t)size);
    fclose(file);
}

static void close_connection(struct connection *connection) {
    close(connection->fd);
    connection->fd = -1;
    hog.num_closed++;
}

static void open_connection(struct connection *connection) {
    const int one = 1, small = 2048, segment = 536;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    check(fd >= 0, "socket");

    *connection = (struct connection){.fd = fd, .num_left = hog.depth};
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (hog.rate > 0) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    if (bind(fd, (struct sockaddr *)&hog.from, sizeof hog.from) != 0 ||
        (connect(fd, (struct sockaddr *)&hog.to, sizeof hog.to) != 0 &&
         errno != EINPROGRESS)) {
        close_connection(connection);
        return;
    }
    struct epoll_event event = {.events = EPOLLOUT | EPOLLIN | EPOLLRDHUP | EPOLLET,
                                .data.ptr = connection};
    check(epoll_ctl(hog.epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static void send_batch(struct connection *connection) {
    while (connection->sent < hog.batch_size) {
        ssize_t size = send(connection->fd, hog.batch + connection->sent,
                            hog.batch_size - connection->sent, MSG_NOSIGNAL);
        if (size < 0)
            return; /* full, or broken: then reading says so */
        connection->sent += (size_t)size;
    }
}

/* Counts the replies that begin in what was read. */
static void count_replies(struct connection *connection, const char *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (connection->matched == 0) {
            const char *next = memchr(data + i, REPLY[0], size - i);
            if (next == NULL)
                return;
            i = (size_t)(next - data);
        }
        connection->matched = data[i] == REPLY[connection->matched]
                                  ? connection->matched + 1
                                  : data[i] == REPLY[0];
        if (connection->matched < sizeof REPLY - 1)
            continue;
        connection->matched = 0;
        hog.num_replies++;
        if (--connection->num_left == 0) {
            connection->num_left = hog.depth;
            connection->sent = 0;
        }
    }
}

/* Reads at most `max` bytes. */
static void receive(struct connection *connection, size_t max) {
    while (max > 0) {
        ssize_t size =
            recv(connection->fd, hog.scratch, max < READ_BYTES ? max : READ_BYTES, 0);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (size <= 0) {
            close_connection(connection);
            return;
        }
        count_replies(connection, hog.scratch, (size_t)size);
        max -= (size_t)size;
    }
    send_batch(connection);
}

static void wait_for_events(void) {
    struct epoll_event events[256];
    int count = epoll_wait(hog.epoll, events, 256, 5);

    for (int i = 0; i < count; i++) {
        struct connection *connection = events[i].data.ptr;
        if (connection->fd < 0)
            continue;
        connection->connected = true;
        if (events[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP))
            close_connection(connection);
        else if (hog.rate == 0)
            receive(connection, SIZE_MAX);
        else
            send_batch(connection);
    }
}

static void run(double seconds) {
    double began = now();
    size_t slice = 0, next = 0;

    while (now() - began < seconds) {
        size_t num_opened = 0;
        for (size_t i = 0; i < hog.num_connections && num_opened < OPEN_AGAIN; i++) {
            next = (next + 1) % hog.num_connections;
            if (hog.connections[next].fd < 0) {
                open_connection(&hog.connections[next]);
                num_opened++;
            }
        }
        wait_for_events();
        for (; hog.rate > 0 && (now() - began) * SLICES > (double)slice; slice++) {
            for (size_t i = slice % SLICES; i < hog.num_connections; i += SLICES) {
                if (hog.connections[i].fd >= 0 && hog.connections[i].connected)
                    receive(&hog.connections[i], hog.rate);
            }
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 8) {
        fputs("usage: hog PORT SOURCE CONNECTIONS SECONDS FILE DEPTH RATE\n", stderr);
        return 2;
    }
    hog.to = (struct sockaddr_in){.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)atoi(argv[1])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    hog.from = (struct sockaddr_in){.sin_family = AF_INET};
    check(inet_pton(AF_INET, argv[2], &hog.from.sin_addr) == 1, argv[2]);
    hog.num_connections = (size_t)atol(argv[3]);
    hog.depth = (size_t)atol(argv[6]);
    hog.rate = (size_t)atol(argv[7]);
    read_request(argv[5]);

    hog.epoll = epoll_create1(0);
    hog.scratch = malloc(READ_BYTES);
    hog.connections = calloc(hog.num_connections, sizeof *hog.connections);
    check(hog.epoll >= 0 && hog.scratch != NULL && hog.connections != NULL, "start");
    for (size_t i = 0; i < hog.num_connections; i++)
        hog.connections[i].fd = -1;
    run(atof(argv[4]));

    size_t num_open = 0;
    for (size_t i = 0; i < hog.num_connections; i++)
        num_open += hog.connections[i].fd >= 0;
    printf("replies %llu closed %llu open %zu\n", (unsigned long long)hog.num_replies,
           (unsigned long long)hog.num_closed, num_open);
    return 0;
}
