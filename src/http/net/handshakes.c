/* SPDX-License-Identifier: Apache-2.0 */
/* handshakes.c: a list of those that run, and one of those that wait. */
#include "http/net/handshakes.h"

#include "base/clock.h"
#include "tls/session.h"

#include <sys/epoll.h>
#include <sys/socket.h>

/* How long a handshake may take while others of its client wait, or while all wait. */
#define LONG_NS     ((int64_t)2000000000)
#define LONG_ALL_NS ((int64_t)700000000)
/* Each record takes a run of libmicrohttpd. Clients send some five. */
#define RECORDS_MAX 64

static size_t count_running(const struct handshakes *handshakes,
                            const struct client *client) {
    const struct handshake *each;
    size_t count = 0;
    LIST_FOREACH(each, &handshakes->running, links)
    count += each->client == client;
    return count;
}

static void remove_running(struct handshakes *handshakes, struct handshake *handshake) {
    LIST_REMOVE(handshake, links);
    handshakes->num_running--;
    handshakes->num_ending -= handshake->state == HANDSHAKE_ENDS;
    handshake->state = HANDSHAKE_NONE;
    handshakes->has_room = true;
}

/* --- waiting --- */

static void unlink_waiting(struct handshakes *handshakes, struct handshake *handshake) {
    LIST_REMOVE(handshake, links);
    handshakes->num_waiting--;
}

void handshakes_add(struct handshakes *handshakes, struct handshake *handshake) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = handshake};

    handshake->state = HANDSHAKE_WATCHED;
    if (epoll_ctl(handshakes->epoll_fd, EPOLL_CTL_ADD, handshake->fd, &event) != 0)
        handshakes_note_bytes(handshakes, handshake); /* memory is short */
}

static void stop_watching(const struct handshakes *handshakes,
                          const struct handshake *handshake) {
    struct epoll_event ignored = {0};
    epoll_ctl(handshakes->epoll_fd, EPOLL_CTL_DEL, handshake->fd, &ignored);
}

void handshakes_note_bytes(struct handshakes *handshakes, struct handshake *handshake) {
    stop_watching(handshakes, handshake);
    handshake->state = HANDSHAKE_WAITS;
    LIST_INSERT_HEAD(&handshakes->waiting, handshake, links);
    handshakes->num_waiting++;
    handshakes->has_room = true; /* for its client, perhaps */
}

/* Returns the newest of a client that may run more of them; NULL: none may run. */
static struct handshake *find_next(const struct handshakes *handshakes) {
    const struct client *full = NULL;
    struct handshake *each;

    LIST_FOREACH(each, &handshakes->waiting, links) {
        if (each->client == full)
            continue;
        if (count_running(handshakes, each->client) < HANDSHAKES_PER_CLIENT)
            return each;
        full = each->client;
    }
    return NULL;
}

/* --- ending --- */

static void end_handshake(struct handshakes *handshakes, struct handshake *handshake) {
    handshake->state = HANDSHAKE_ENDS;
    handshakes->num_ending++;
    shutdown(handshake->fd, SHUT_RDWR);
}

/* Ends the one that runs the longest. Returns false when none takes long. */
static bool end_long_handshake(struct handshakes *handshakes) {
    bool is_full = handshakes->num_running == HANDSHAKES_MAX;
    struct handshake *found = NULL, *each;

    LIST_FOREACH(each, &handshakes->running, links)
    found = each->state == HANDSHAKE_RUNS ? each : found;
    if (found == NULL ||
        found->since > clock_now_ns() - (is_full ? LONG_ALL_NS : LONG_NS))
        return false;
    end_handshake(handshakes, found);
    return true;
}

/* Looks at those that run: some are complete, or came in too many records. */
static void look_at_running(struct handshakes *handshakes) {
    for (struct handshake *each = LIST_FIRST(&handshakes->running), *next; each != NULL;
         each = next) {
        next = LIST_NEXT(each, links);
        if (each->established)
            remove_running(handshakes, each);
        else if (each->state == HANDSHAKE_RUNS && each->session != NULL &&
                 tls_session_count_records(each->session) > RECORDS_MAX)
            end_handshake(handshakes, each);
    }
}

struct handshake *handshakes_take(struct handshakes *handshakes) {
    struct handshake *found = NULL;

    look_at_running(handshakes);
    if (handshakes->has_room && handshakes->num_running < HANDSHAKES_MAX)
        found = find_next(handshakes);
    handshakes->has_room = found != NULL;
    if (found != NULL) {
        unlink_waiting(handshakes, found);
        found->state = HANDSHAKE_RUNS;
        found->since = clock_now_ns();
        LIST_INSERT_HEAD(&handshakes->running, found, links);
        handshakes->num_running++;
        return found;
    }

    while (handshakes->num_ending < handshakes->num_waiting &&
           end_long_handshake(handshakes))
        ;
    return NULL;
}

void handshakes_remove(struct handshakes *handshakes, struct handshake *handshake) {
    if (handshake->state == HANDSHAKE_WAITS)
        unlink_waiting(handshakes, handshake);
    else if (handshake->state == HANDSHAKE_WATCHED)
        stop_watching(handshakes, handshake);
    else if (handshake->state != HANDSHAKE_NONE)
        remove_running(handshakes, handshake);
}
