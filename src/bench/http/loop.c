/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c: clients, which epoll watches, and the schedule. Times are ns since the start of
 * the warm-up.
 *
 * The latency of an open loop counts from the moment when the request was due. So neither
 * a server that is slow nor a generator that is late hides how long clients wait. A
 * request that finds no connection waits for one. */
#include "bench/http/loop.h"

#include "base/clock.h"
#include "base/error.h"
#include "bench/http/arrivals.h"
#include "bench/http/reply.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#define READ_BYTES ((size_t)256 * 1024) /* at one time */
#define EVENTS_MAX 256
#define NS_PER_MS  INT64_C(1000000)
#define PAUSE_NS   (100 * NS_PER_MS) /* of a client that was not served */

struct client {
    int fd; /* -1: none */
    bool busy;
    bool reused; /* nothing has come since the last reply, so it may be closed by now */
    int broken;  /* errno of what could not be sent, which recv() does not repeat */
    uint32_t request;
    int64_t due, begun;
    int64_t resume; /* closed loop: when to send the next request */
    size_t sent;    /* bytes of the request */
    struct load_reply reply;
};

struct loop {
    const struct load_plan *plan;
    struct load_tally *tally;
    struct client *clients; /* [num_clients] */
    size_t num_clients;
    size_t *ready; /* [num_ready], a stack of the clients that are not busy */
    size_t num_ready;
    int64_t free_since; /* since when some client has been ready */
    int64_t origin;     /* by the clock */
    int64_t cpu_origin; /* by the clock of the thread's CPU time */
    int64_t next_due;   /* of the open loop; LOAD_NEVER: the schedule has ended */
    int64_t swept;      /* when clients were last swept */
    struct load_arrivals arrivals;
    uint64_t random, arrivals_random;
    int epoll;
    char *scratch;      /* [READ_BYTES] */
    attn_status status; /* of what the generator itself could not do */
    attn_error *error;
};

static int64_t loop_now(const struct loop *loop) {
    return clock_now_ns() - loop->origin;
}

static int64_t loop_end(const struct loop *loop) {
    return loop->plan->warmup_ns + loop->plan->window_ns;
}

static uint32_t choose_request(struct loop *loop) {
    return (uint32_t)load_requests_choose(loop->plan->requests,
                                          load_random(&loop->random));
}

/* Ends the step, because this machine did not do what it must. */
static void stop_loop(struct loop *loop, const char *what) {
    if (loop->status == ATTN_OK)
        loop->status = error_set(loop->error, ATTN_E_IO, "%s: %s", what, strerror(errno));
}

/* --- outcomes --- */

static void write_sample(const struct load_plan *plan, uint32_t request, int64_t due,
                         int64_t now, int outcome) {
    static const char *const words[] = {"timed out", "misread", "lost"};

    fprintf(plan->samples, "%zu,%u,%.6f,%.6f,", plan->index, request,
            (double)(now - plan->warmup_ns) * 1e-9, (double)(now - due) * 1e-6);
    if (outcome >= LOAD_STATUS_MIN)
        fprintf(plan->samples, "%d\n", outcome);
    else
        fprintf(plan->samples, "%s\n", words[outcome]);
}

/* Counts what became of a request that was due at `due`. */
static void count_outcome(struct loop *loop, uint32_t request, int64_t due, int64_t now,
                          int outcome) {
    struct load_tally *tally = loop->tally;
    int64_t warmup = loop->plan->warmup_ns;
    bool served = load_is_served(outcome);

    if (served && now >= warmup && now < loop_end(loop))
        tally->served++;
    if (due < warmup)
        return;
    tally->outcomes[outcome]++;
    if (served)
        load_histogram_add(&tally->latency, (uint64_t)(now - due));
    if (loop->plan->samples != NULL)
        write_sample(loop->plan, request, due, now, outcome);
}

/* --- connections --- */

static void close_connection(struct client *client) {
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
    client->reused = false;
    client->broken = 0;
}

/* Ends the request of `client` and makes it ready for the next. */
static void end_request(struct loop *loop, struct client *client, int outcome) {
    const struct load_plan *plan = loop->plan;
    int64_t now = loop_now(loop);
    bool whole = outcome >= LOAD_STATUS_MIN &&
                 client->sent == plan->requests->items[client->request].size;

    count_outcome(loop, client->request, client->due, now, outcome);
    if (!whole || client->reply.close || plan->fresh)
        close_connection(client);
    else
        client->reused = true;
    client->busy = false;
    client->resume = load_is_served(outcome) ? now : now + PAUSE_NS;
    if (loop->num_ready == 0)
        loop->free_since = now;
    loop->ready[loop->num_ready++] = (size_t)(client - loop->clients);
}

/* Returns whether there is a connection now, or may be one at the next sweep: where TCP
 * waits for a server that is too busy to accept, a Unix socket refuses with EAGAIN. */
static bool open_connection(struct loop *loop, struct client *client) {
    const struct load_target *target = loop->plan->target;
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = client};
    int one = 1;

    client->fd =
        socket(target->to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (client->fd < 0 ||
        epoll_ctl(loop->epoll, EPOLL_CTL_ADD, client->fd, &event) != 0) {
        stop_loop(loop, "cannot open a socket");
        return false;
    }
    if (target->to.ss_family != AF_UNIX)
        setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (target->from_size > 0) {
        /* Else bind() itself would choose a port, of which there are too few. */
        setsockopt(client->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
        if (bind(client->fd, (const struct sockaddr *)&target->from, target->from_size) !=
            0)
            return false;
    }
    int result =
        connect(client->fd, (const struct sockaddr *)&target->to, target->to_size);
    if (result != 0 && errno == EAGAIN && target->to.ss_family == AF_UNIX) {
        close_connection(client);
        return true;
    }
    return result == 0 || errno == EINPROGRESS;
}

static void connect_client(struct loop *loop, struct client *client) {
    if (open_connection(loop, client) || loop->status != ATTN_OK)
        return;
    loop->tally->lost_errno = errno;
    end_request(loop, client, LOAD_LOST);
}

/* Returns false when the connection is broken. */
static bool send_rest(struct loop *loop, struct client *client) {
    const struct load_request *request = &loop->plan->requests->items[client->request];

    while (client->sent < request->size) {
        ssize_t sent = send(client->fd, request->bytes + client->sent,
                            request->size - client->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) /* full, or not connected yet */
            return true;
        if (sent < 0) {
            client->broken = errno;
            return false;
        }
        client->sent += (size_t)sent;
    }
    return true;
}

/* The connection of `client` has failed, with `number`, or was closed (0). */
static void lose_connection(struct loop *loop, struct client *client, int number) {
    if (client->reply.part == LOAD_PART_TO_END && number == 0) {
        end_request(loop, client, client->reply.status);
        return;
    }
    if (client->reused) {
        /* The server may have closed it while it was idle: once more. It may as well have
         * read what was sent, so that is counted. */
        loop->tally->resent += client->sent > 0 && client->due >= loop->plan->warmup_ns;
        client->sent = 0;
        close_connection(client);
        connect_client(loop, client);
        return;
    }
    loop->tally->lost_errno = client->broken != 0 ? client->broken : number;
    end_request(loop, client, LOAD_LOST);
}

/* Reads until there is nothing more, as the edges of epoll ask for. A connection that is
 * broken may still have a reply; then it is lost. */
static void receive(struct loop *loop, struct client *client) {
    for (;;) {
        ssize_t size = recv(client->fd, loop->scratch, READ_BYTES, 0);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno == EAGAIN && client->broken == 0)
            return;
        if (!client->busy) { /* the server has closed a connection that was idle */
            close_connection(client);
            return;
        }
        if (size <= 0) {
            lose_connection(loop, client, size < 0 ? errno : 0);
            return;
        }

        client->reused = false;
        enum load_progress progress =
            load_reply_take(&client->reply, loop->scratch, (size_t)size);
        if (progress != LOAD_MORE) {
            end_request(loop, client,
                        progress == LOAD_WHOLE ? client->reply.status : LOAD_MISREAD);
            return;
        }
    }
}

static void start_request(struct loop *loop, struct client *client, int64_t due) {
    client->busy = true;
    client->request = choose_request(loop);
    client->due = due;
    client->begun = loop_now(loop);
    loop->tally->sent +=
        client->begun >= loop->plan->warmup_ns && client->begun < loop_end(loop);
    client->sent = 0;
    load_reply_reset(&client->reply);

    if (client->fd < 0)
        connect_client(loop, client);
    else if (!send_rest(loop, client))
        receive(loop, client);
}

/* --- the schedule --- */

/* Returns the next moment of the warm-up, then of the window. */
static int64_t find_next_due(struct loop *loop) {
    const struct load_plan *plan = loop->plan;
    int64_t due = load_arrivals_next(&loop->arrivals, &loop->arrivals_random);

    if (due < LOAD_NEVER || loop->arrivals.end_ns > (double)plan->warmup_ns)
        return due;
    loop->arrivals =
        load_arrivals_begin(plan->poisson, plan->rate, plan->warmup_ns, loop_end(loop));
    return load_arrivals_next(&loop->arrivals, &loop->arrivals_random);
}

/* Starts the requests of the open loop that are due. Those that still have no connection
 * when the timeout has passed since the end are never sent. */
static void start_due(struct loop *loop, int64_t now) {
    struct load_tally *tally = loop->tally;

    while (loop->next_due <= now) {
        int64_t due = loop->next_due;
        if (now >= loop_end(loop) + loop->plan->timeout_ns) {
            tally->waited += due >= loop->plan->warmup_ns;
            count_outcome(loop, choose_request(loop), due, now, LOAD_TIMED_OUT);
        } else if (loop->num_ready == 0) {
            return;
        } else {
            bool waited = loop->free_since > due;
            now = loop_now(loop);
            if (due >= loop->plan->warmup_ns && waited)
                tally->waited++;
            else if (due >= loop->plan->warmup_ns)
                load_histogram_add(&tally->lateness, (uint64_t)(now - due));
            start_request(loop, &loop->clients[loop->ready[--loop->num_ready]], due);
        }
        loop->next_due = find_next_due(loop);
    }
}

/* Starts the next request of each client of the closed loop that is ready. */
static void start_ready(struct loop *loop, int64_t now) {
    for (size_t i = loop->num_ready; i-- > 0;) {
        struct client *client = &loop->clients[loop->ready[i]];
        if (client->resume > now)
            continue;
        loop->ready[i] = loop->ready[--loop->num_ready];
        start_request(loop, client, loop_now(loop));
    }
}

/* Ends the requests that have waited too long, and tries again to connect the others. */
static void sweep_clients(struct loop *loop, int64_t now) {
    loop->swept = now;
    for (size_t i = 0; i < loop->num_clients; i++) {
        struct client *client = &loop->clients[i];
        if (client->busy && now - client->begun >= loop->plan->timeout_ns)
            end_request(loop, client, LOAD_TIMED_OUT);
        else if (client->busy && client->fd < 0)
            connect_client(loop, client);
    }
}

/* Returns the time between two sweeps. */
static int64_t sweep_pause(const struct loop *loop) {
    int64_t pause = clock_earlier(loop->plan->timeout_ns / 8, 50 * NS_PER_MS);
    return pause > NS_PER_MS ? pause : NS_PER_MS;
}

/* Returns when there is something to do without an event. */
static int64_t find_wake(const struct loop *loop, int64_t now) {
    int64_t wake = now < loop_end(loop) ? loop_end(loop) : LOAD_NEVER;

    if (loop->num_ready < loop->num_clients)
        wake = clock_earlier(wake, loop->swept + sweep_pause(loop));
    if (loop->plan->rate > 0 && loop->num_ready > 0)
        return clock_earlier(wake, loop->next_due);
    for (size_t i = 0; now < loop_end(loop) && i < loop->num_ready; i++)
        wake = clock_earlier(wake, loop->clients[loop->ready[i]].resume);
    return wake;
}

/* Waits until `wake`, and serves what happens meanwhile. */
static void serve_events(struct loop *loop, int64_t wake) {
    struct epoll_event events[EVENTS_MAX];
    int64_t wait = wake - loop_now(loop);
    wait = wait < 0 ? 0 : wait;
    const struct timespec pause = {.tv_sec = wait / 1000000000,
                                   .tv_nsec = wait % 1000000000};

    int count = epoll_pwait2(loop->epoll, events, EVENTS_MAX, &pause, NULL);
    if (count < 0 && errno != EINTR)
        stop_loop(loop, "epoll_pwait2");
    for (int i = 0; i < count; i++) {
        struct client *client = events[i].data.ptr;
        uint32_t what = events[i].events;
        bool broken = client->busy && (what & EPOLLOUT) && !send_rest(loop, client);
        if (client->fd >= 0 && (broken || (what & ~(uint32_t)EPOLLOUT)))
            receive(loop, client);
        /* There is no other edge when it was closed behind the reply. */
        if (!client->busy && (what & (EPOLLRDHUP | EPOLLHUP)))
            close_connection(client);
    }
}

static void run_loop(struct loop *loop) {
    bool open = loop->plan->rate > 0;

    for (;;) {
        int64_t now = loop_now(loop);
        if (now - loop->swept >= sweep_pause(loop))
            sweep_clients(loop, now);
        if (now >= loop_end(loop) && loop->tally->cpu_ns == 0)
            loop->tally->cpu_ns = clock_thread_ns() - loop->cpu_origin;
        if (open)
            start_due(loop, now);
        else if (now < loop_end(loop))
            start_ready(loop, now);
        if (loop->status != ATTN_OK ||
            (now >= loop_end(loop) && loop->num_ready == loop->num_clients &&
             (!open || loop->next_due == LOAD_NEVER)))
            return;
        serve_events(loop, find_wake(loop, now));
    }
}

/* --- the step --- */

static void start_schedule(struct loop *loop) {
    const struct load_plan *plan = loop->plan;

    for (size_t i = loop->num_clients; i-- > 0;) {
        loop->clients[i].fd = -1;
        loop->ready[loop->num_ready++] = i;
    }
    if (plan->rate > 0) {
        loop->arrivals =
            load_arrivals_begin(plan->poisson, plan->rate, 0, plan->warmup_ns);
        loop->next_due = find_next_due(loop);
    }
    loop->origin = clock_now_ns();
    loop->cpu_origin = clock_thread_ns();
}

attn_status load_run_step(const struct load_plan *plan, struct load_tally *tally,
                          attn_error *ret_error) {
    struct loop loop = {
        .plan = plan,
        .tally = tally,
        .num_clients = plan->connections,
        .random = ~plan->seed,
        .arrivals_random = plan->seed,
        .epoll = epoll_create1(EPOLL_CLOEXEC),
        .scratch = malloc(READ_BYTES),
        .error = ret_error,
    };

    loop.clients = calloc(loop.num_clients, sizeof *loop.clients);
    loop.ready = calloc(loop.num_clients, sizeof *loop.ready);
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL); /* ns; else waits are 50 us too long */
    if (loop.scratch == NULL || loop.clients == NULL || loop.ready == NULL) {
        loop.status = error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    } else if (loop.epoll < 0) {
        stop_loop(&loop, "epoll_create1");
    } else {
        start_schedule(&loop);
        run_loop(&loop);
        for (size_t i = 0; i < loop.num_clients; i++)
            close_connection(&loop.clients[i]);
    }
    if (loop.epoll >= 0)
        close(loop.epoll);
    free(loop.ready);
    free(loop.clients);
    free(loop.scratch);
    return loop.status;
}
