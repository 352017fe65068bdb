/* SPDX-License-Identifier: Apache-2.0 */
/* loadgen: sends HTTP requests to a port of 127.0.0.1 and writes what became of each.
 *
 *     loadgen PORT FILE SECONDS GIVE_UP RATE CONNECTIONS FRESH SOURCE > samples
 *
 * RATE > 0 is an open loop: so many requests a second are sent whether or not there are
 * replies, over at most CONNECTIONS connections. RATE 0 is a closed loop: each connection
 * sends its next request when it has the last reply. A client closes its connection after
 * GIVE_UP seconds without the whole reply. FRESH 1 opens a connection for each request.
 * SOURCE is the address to send from, e.g. 127.0.0.2.
 *
 * FILE has complete requests, each behind two uint32: its bytes and its class, a number
 * that the samples repeat. They are chosen at random, with a fixed seed. Replies need a
 * Content-Length.
 *
 * One thread with epoll. Times are seconds since the start. The latency of an open loop
 * counts from the moment when the request was due, so that a late generator does not hide
 * a wait. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 16 * 1024,     /* largest head of a reply */
    READ_BYTES = 1024 * 1024, /* read at one time */
    GAVE_UP = 0,
    FAILED = -1 /* refused, reset, or not understood */
};
static const double SWEEP_SECONDS = 0.05; /* between two looks at who gives up */
static const double PAUSE_SECONDS = 0.1;  /* of a closed loop after anything but 200 */

/* One finished request, as it is written. */
struct sample {
    double at;      /* when it ended */
    double latency; /* seconds */
    int32_t class;
    int32_t outcome; /* the status, GAVE_UP or FAILED */
};

struct request {
    const char *bytes;
    uint32_t size;
    uint32_t class;
};

struct client {
    int fd; /* -1: none */
    bool busy;
    bool reused; /* the connection has carried a reply, so it may be closed by now */
    const struct request *request;
    double began;
    double resume; /* closed loop: when to send the next request */
    size_t sent;   /* of the request */
    size_t head;   /* bytes of the reply's head in `text` */
    int status;    /* 0: its head is not complete */
    bool close;    /* the reply says so */
    uint64_t rest; /* of the reply's body */
    char *text;    /* [HEAD_MAX + 1] */
};

static struct {
    struct sockaddr_in to, from;
    struct request *requests;
    size_t num_requests;
    struct client *clients;
    size_t num_clients;
    size_t *ready; /* stack of clients that are not busy */
    size_t num_ready;
    struct sample *samples;
    size_t num_samples, samples_capacity;
    double seconds, give_up, rate, origin;
    bool fresh;
    int epoll;
    char *scratch;
} load;

static void check(bool ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "loadgen: %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9 - load.origin;
}

static const struct request *choose_request(void) {
    static uint64_t state = 88172645463325252ULL;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return &load.requests[state % load.num_requests];
}

static void read_requests(const char *path) {
    FILE *file = fopen(path, "rb");
    uint32_t header[2];

    check(file != NULL, path);
    while (fread(header, sizeof header, 1, file) == 1) {
        char *bytes = malloc(header[0]);
        size_t count = load.num_requests + 1;
        load.requests = realloc(load.requests, count * sizeof *load.requests);
        check(bytes != NULL && load.requests != NULL, "malloc");
        check(fread(bytes, header[0], 1, file) == 1, path);
        load.requests[load.num_requests++] =
            (struct request){.bytes = bytes, .size = header[0], .class = header[1]};
    }
    fclose(file);
    check(load.num_requests > 0, "no request in the file");
}

static void close_socket(struct client *client) {
    if (client->fd >= 0) {
        close(client->fd);
        client->fd = -1;
    }
    client->reused = false;
}

/* Ends the request of `client` and makes it ready for the next. */
static void finish(struct client *client, int outcome) {
    double at = now();

    if (load.num_samples == load.samples_capacity) {
        load.samples_capacity = load.samples_capacity * 2 + 1024;
        load.samples =
            realloc(load.samples, load.samples_capacity * sizeof *load.samples);
        check(load.samples != NULL, "realloc");
    }
    load.samples[load.num_samples++] =
        (struct sample){.at = at,
                        .latency = at - client->began,
                        .class = (int32_t)client->request->class,
                        .outcome = outcome};

    bool whole = outcome > 0 && client->sent == client->request->size;
    if (!whole || client->close || load.fresh)
        close_socket(client);
    else
        client->reused = true;
    client->busy = false;
    client->resume = outcome == 200 ? at : at + PAUSE_SECONDS;
    load.ready[load.num_ready++] = (size_t)(client - load.clients);
}

static void watch(struct client *client, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = client};
    check(epoll_ctl(load.epoll, operation, client->fd, &event) == 0, "epoll_ctl");
}

static bool open_socket(struct client *client) {
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    check(client->fd >= 0, "socket"); /* the server did not cause it */

    int one = 1;
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(client->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(client->fd, (struct sockaddr *)&load.from, sizeof load.from) != 0 ||
        (connect(client->fd, (struct sockaddr *)&load.to, sizeof load.to) != 0 &&
         errno != EINPROGRESS)) {
        close_socket(client);
        return false;
    }
    watch(client, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
    return true;
}

static void send_rest(struct client *client) {
    const struct request *request = client->request;

    while (client->sent < request->size) {
        ssize_t sent = send(client->fd, request->bytes + client->sent,
                            request->size - client->sent, MSG_NOSIGNAL);
        if (sent < 0)
            return; /* full, or broken: then reading says so */
        client->sent += (size_t)sent;
    }
    watch(client, EPOLL_CTL_MOD, EPOLLIN);
}

static void begin(struct client *client, const struct request *request, double due) {
    client->busy = true;
    client->request = request;
    client->began = due;
    client->sent = client->head = 0;
    client->status = 0;
    client->close = false;

    if (client->fd >= 0) {
        watch(client, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
        send_rest(client);
    } else if (!open_socket(client)) {
        finish(client, FAILED);
    }
}

/* Reads a complete head. Returns false if it has neither status nor length. */
static bool read_head(struct client *client, const char *end) {
    bool has_length = false;

    client->text[client->head] = '\0';
    if (sscanf(client->text, "HTTP/1.%*1[01] %d", &client->status) != 1)
        return false;
    for (const char *line = strstr(client->text, "\r\n"); line && line < end;
         line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, "content-length:", 15) == 0) {
            client->rest = strtoull(line + 15, NULL, 10);
            has_length = true;
        }
        if (strncasecmp(line, "connection: close", 17) == 0)
            client->close = true;
    }
    return has_length;
}

/* Takes `size` bytes of a reply. Returns the outcome, or -2 while bytes are missing. */
static int take_bytes(struct client *client, const char *bytes, size_t size) {
    enum { MORE = -2 };

    if (client->status == 0) {
        size_t part = size < HEAD_MAX - client->head ? size : HEAD_MAX - client->head;
        memcpy(client->text + client->head, bytes, part);
        client->head += part;
        const char *end = memmem(client->text, client->head, "\r\n\r\n", 4);
        if (end == NULL)
            return client->head == HEAD_MAX ? FAILED : MORE;
        if (!read_head(client, end))
            return FAILED;
        size -= part;
        size += client->head - (size_t)(end + 4 - client->text);
    }
    if (size > client->rest)
        return FAILED;
    client->rest -= size;
    return client->rest == 0 ? client->status : MORE;
}

static void receive(struct client *client) {
    for (;;) {
        ssize_t size = recv(client->fd, load.scratch, READ_BYTES, 0);
        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (!client->busy) { /* the server has closed a connection that was idle */
            close_socket(client);
            return;
        }
        if (size <= 0 && client->reused && client->head == 0) {
            /* It was closed as the request was sent, so nobody has read it: once more. */
            close_socket(client);
            begin(client, client->request, client->began);
            return;
        }
        int outcome = size <= 0 ? FAILED : take_bytes(client, load.scratch, (size_t)size);
        if (outcome >= FAILED) {
            finish(client, outcome);
            return;
        }
    }
}

static void sweep(double time) {
    for (size_t i = 0; i < load.num_clients; i++) {
        struct client *client = &load.clients[i];
        if (client->busy && time - client->began > load.give_up)
            finish(client, GAVE_UP);
    }
}

/* Starts what is due at `time`. Returns how many requests an open loop has started. */
static uint64_t start_due(double time, uint64_t num_started) {
    if (load.rate > 0) {
        for (; num_started < (uint64_t)(time * load.rate) && load.num_ready > 0;
             num_started++)
            begin(&load.clients[load.ready[--load.num_ready]], choose_request(),
                  (double)(num_started + 1) / load.rate);
        return num_started;
    }

    for (size_t i = load.num_ready; i-- > 0;) {
        struct client *client = &load.clients[load.ready[i]];
        if (client->resume > time)
            continue;
        load.ready[i] = load.ready[--load.num_ready];
        begin(client, choose_request(), time);
    }
    return 0;
}

static void run(void) {
    struct epoll_event events[256];
    double swept = 0;
    uint64_t num_started = 0;

    for (double time = 0; time < load.seconds || load.num_ready < load.num_clients;
         time = now()) {
        if (time < load.seconds)
            num_started = start_due(time, num_started);
        int count = epoll_wait(load.epoll, events, 256, 1);
        for (int i = 0; i < count; i++) {
            struct client *client = events[i].data.ptr;
            if (client->fd >= 0 && client->busy && (events[i].events & EPOLLOUT))
                send_rest(client);
            if (client->fd >= 0 && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                receive(client);
        }
        if (time - swept > SWEEP_SECONDS) {
            sweep(time);
            swept = time;
        }
    }
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fputs("usage: loadgen PORT FILE SECONDS GIVE_UP RATE CONNECTIONS FRESH SOURCE\n",
              stderr);
        return 2;
    }
    load.to = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atoi(argv[1])),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    load.from = (struct sockaddr_in){.sin_family = AF_INET};
    check(inet_pton(AF_INET, argv[8], &load.from.sin_addr) == 1, argv[8]);
    read_requests(argv[2]);
    load.seconds = atof(argv[3]);
    load.give_up = atof(argv[4]);
    load.rate = atof(argv[5]);
    load.num_clients = (size_t)atol(argv[6]);
    load.fresh = atoi(argv[7]) != 0;

    load.epoll = epoll_create1(0);
    load.scratch = malloc(READ_BYTES);
    load.clients = calloc(load.num_clients, sizeof *load.clients);
    load.ready = calloc(load.num_clients, sizeof *load.ready);
    check(load.epoll >= 0 && load.scratch && load.clients && load.ready, "start");
    for (size_t i = load.num_clients; i-- > 0;) {
        load.clients[i].fd = -1;
        load.clients[i].text = malloc(HEAD_MAX + 1);
        check(load.clients[i].text != NULL, "malloc");
        load.ready[load.num_ready++] = i;
    }
    load.origin = now();
    run();
    fwrite(load.samples, sizeof *load.samples, load.num_samples, stdout);
    return fflush(stdout) == 0 ? 0 : 1;
}
