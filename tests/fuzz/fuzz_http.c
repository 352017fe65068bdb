/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_http.c: any bytes as what a client sends on one connection, to a whole server in
 * this process. They get replies or none. The server serves the next client, and accepts
 * no request whose head is not strict. */
#include "check.h"

#include "base/log.h"
#include "http/net/address.h"
#include "http/net/origin.h"
#include "http/net/secrets.h"
#include "http/server.h"
#include "models/generation.h"
#include "safetensors/parse.h"

#include <arpa/inet.h>
#include <attnd/library.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define MEMORY_BYTES ((size_t)256 * 1024 * 1024)
#define LATEST_REPLY 20   /* seconds */
#define SILENCE_USEC 3000 /* after which the server waits for more */
/* Ends a connection that is still open. An input may make it something else, such as a
 * part of a body. The end of what is sent then ends the connection. */
#define LAST_REQUEST "\r\n\r\n" GOOD_REQUEST
#define GOOD_REQUEST "GET /v2/health/live HTTP/1.0\r\n\r\n"
#define STATUS_BYTES 12 /* "HTTP/1.1 200" */

/* The server that all inputs share. It lives until the process ends. */
static struct {
    struct sched_budget budget;
    struct generations models;
    struct origins origins;
    struct secrets secrets; /* without files */
    struct config config;
    struct http_options options;
    struct http_server *server;
    struct sockaddr_in address;
} shared;

/* The beginning of what the server sent on one connection. */
struct reply {
    char bytes[64 * 1024];
    size_t size;
};

static void start_server(void) {
    static const struct address_ranges no_proxies;
    static char page[] = "http://a", listen[] = "127.0.0.1:0";
    static char *listens[] = {listen};
    char *const pages[] = {page};
    const struct sched_options sched = {.num_workers = 1,
                                        .queue_slots = 4,
                                        .max_delay = 1000000000,
                                        .arena_keep = 1 << 20};
    attn_model *model = NULL;
    attn_error error;
    unsigned port;

    signal(SIGPIPE, SIG_IGN);
    log_init(LOG_FORMAT_TEXT, LOG_ERROR);
    parse_json_init();
    fuzz_check(attn_init(&error) == ATTN_OK &&
                   attn_model_demo("journey", NULL, &model, &error) == ATTN_OK,
               "a model that cannot be made");
    fuzz_check(origins_read(pages, 1, &shared.origins, &error) == ATTN_OK,
               "an origin that cannot be read");
    generations_init(&shared.models);
    struct model_entry entry = {.name = "journey", .model = model};
    fuzz_check(generation_publish(&shared.models, &(struct model_list){&entry, 1}) ==
                   ATTN_OK,
               "a model that cannot be served");
    sched_budget_init(&shared.budget, MEMORY_BYTES);
    shared.config = (struct config){.listens = {listens, 1},
                                    .max_connections = 64,
                                    .header_timeout = 1,
                                    .idle_timeout = 1,
                                    .min_rate = 4096,
                                    .max_body = 1 << 20,
                                    .max_reply = 1 << 24};
    shared.options = (struct http_options){.config = &shared.config,
                                           .num_threads = 1,
                                           .trusted_proxies = &no_proxies,
                                           .cors_origins = &shared.origins,
                                           .secrets = &shared.secrets,
                                           .models = &shared.models,
                                           .budget = &shared.budget};
    fuzz_check(sched_pool_create(&sched, &shared.options.pool) == ATTN_OK &&
                   http_server_create(&shared.options, &shared.server, &error) == ATTN_OK,
               "a server that does not start");

    const char *url = http_server_url(shared.server, false, 0);
    fuzz_check(sscanf(url, "http://127.0.0.1:%u", &port) == 1,
               "an address without a port");
    shared.address = (struct sockaddr_in){.sin_family = AF_INET,
                                          .sin_port = htons((uint16_t)port),
                                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Connects from one of many addresses in turn: the ports of a single one are soon used
 * up, because each is kept for a minute after its connection. */
static int connect_to_server(void) {
    static uint32_t count;
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr =
                                   htonl(INADDR_LOOPBACK + count++ % 1000)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fuzz_check(fd >= 0 && bind(fd, (const struct sockaddr *)&from, sizeof from) == 0 &&
                   connect(fd, (const struct sockaddr *)&shared.address,
                           sizeof shared.address) == 0,
               "a server that does not accept");
    return fd;
}

/* Reads until the server closes, or sends nothing for `latest`. Keeps what `reply` has
 * room for. */
static void read_reply(int fd, struct timeval latest, struct reply *reply) {
    char rest[4096];
    ssize_t got;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &latest, sizeof latest);
    while ((got = recv(fd, rest, sizeof rest, 0)) > 0) {
        size_t room = sizeof reply->bytes - reply->size;
        size_t part = (size_t)got < room ? (size_t)got : room;
        memcpy(reply->bytes + reply->size, rest, part);
        reply->size += part;
    }
}

/* Sends the bytes. Closes that direction when the server seems to wait for more, and not
 * at once: libmicrohttpd 0.9.75 overlooks an end that arrives with the last bytes, and
 * the server then takes a second to notice it. */
static void ask_server(const char *data, size_t size, struct reply *ret_reply) {
    int fd = connect_to_server();
    ret_reply->size = 0;

    /* The server may close before it has read everything. */
    send(fd, data, size, MSG_NOSIGNAL);
    read_reply(fd, (struct timeval){.tv_usec = SILENCE_USEC}, ret_reply);
    shutdown(fd, SHUT_WR);
    read_reply(fd, (struct timeval){.tv_sec = LATEST_REPLY}, ret_reply);
    close(fd);
}

/* Whether the bytes begin with a request whose head is made of whole lines without
 * control characters, and none of them is folded. Empty lines may come before it, and
 * what libmicrohttpd 0.9.75 takes for one: a line that begins with a NUL byte. */
static bool has_strict_head(const char *data, size_t size) {
    const char *at = data, *end = data + size;
    while (at < end && (*at == '\r' || *at == '\n' || *at == '\0')) {
        if (*at == '\0')
            at = memchr(at, '\n', (size_t)(end - at));
        if (at == NULL)
            return false;
        at++;
    }

    for (const char *line = at; at < end; at++) {
        if (*at == '\r' && end - at >= 2 && at[1] == '\n') {
            if (at == line)
                return true;
            line = at + 2;
            if (line < end && (*line == ' ' || *line == '\t'))
                return false;
            at++;
        } else if (((unsigned char)*at < ' ' && *at != '\t') || *at == 0x7F) {
            return false;
        }
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct reply reply;
    size_t last_size = strlen(LAST_REQUEST);
    char *bytes = malloc(size + last_size);
    fuzz_check(bytes != NULL, "no memory");
    if (shared.server == NULL)
        start_server();
    if (size > 0)
        memcpy(bytes, data, size);
    memcpy(bytes + size, LAST_REQUEST, last_size);
    size += last_size;

    ask_server(bytes, size, &reply);
    if (reply.size >= STATUS_BYTES) {
        fuzz_check(memcmp(reply.bytes, "HTTP/1.", 7) == 0,
                   "a reply that is not one of HTTP");
        fuzz_check(reply.bytes[9] > '2' || has_strict_head(bytes, size),
                   "a request that was accepted, but whose head is not strict");
    }

    free(bytes);

    ask_server(GOOD_REQUEST, strlen(GOOD_REQUEST), &reply);
    fuzz_check(reply.size >= STATUS_BYTES && memcmp(reply.bytes + 8, " 200", 4) == 0,
               "a good request that is not served");
    fuzz_check(atomic_load(&shared.budget.used) <= MEMORY_BYTES,
               "a budget that is exceeded");
    return 0;
}
