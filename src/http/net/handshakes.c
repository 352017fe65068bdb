/* SPDX-License-Identifier: Apache-2.0 */
/* handshakes.c: an array of those that run, and a list of those that wait. */
#include "http/net/handshakes.h"

#include "base/clock.h"

#include <sys/socket.h>

/* How long a handshake may take while others wait. */
#define LONG_NS ((int64_t)2000000000)

static size_t count_running(const struct handshakes *handshakes,
                            const struct client *client) {
    size_t count = 0;
    for (size_t i = 0; i < handshakes->num_running; i++)
        count += handshakes->running[i]->client == client;
    return count;
}

static void run_handshake(struct handshakes *handshakes, struct handshake *handshake) {
    handshake->waits = false;
    handshake->since = clock_now_ns();
    handshakes->running[handshakes->num_running++] = handshake;
}

static void remove_running(struct handshakes *handshakes, size_t index) {
    if (handshakes->running[index] == handshakes->ended)
        handshakes->ended = NULL;
    handshakes->running[index] = handshakes->running[--handshakes->num_running];
    handshakes->has_room = true;
}

/* Removes a handshake from those that wait. */
static void unlink_waiting(struct handshakes *handshakes, struct handshake *handshake) {
    if (handshake->previous != NULL)
        handshake->previous->next = handshake->next;
    else
        handshakes->oldest = handshake->next;
    if (handshake->next != NULL)
        handshake->next->previous = handshake->previous;
    else
        handshakes->newest = handshake->previous;
    handshake->waits = false;
}

void handshakes_add(struct handshakes *handshakes, struct handshake *handshake) {
    if (handshakes->num_running < HANDSHAKES_MAX &&
        count_running(handshakes, handshake->client) < HANDSHAKES_PER_CLIENT) {
        run_handshake(handshakes, handshake);
        return;
    }

    handshake->waits = true;
    handshake->since = clock_now_ns();
    handshake->next = NULL;
    handshake->previous = handshakes->newest;
    if (handshakes->newest != NULL)
        handshakes->newest->next = handshake;
    else
        handshakes->oldest = handshake;
    handshakes->newest = handshake;
}

/* Ends the oldest handshake of the client that has most, of those that take long. */
static void end_long_handshake(struct handshakes *handshakes) {
    const int64_t latest = clock_now_ns() - LONG_NS;
    const struct handshake *found = NULL;
    size_t most = 0;

    for (size_t i = 0; i < handshakes->num_running; i++) {
        const struct handshake *each = handshakes->running[i];
        if (each->since > latest)
            continue;
        size_t count = count_running(handshakes, each->client);
        if (found == NULL || count > most ||
            (count == most && each->since < found->since)) {
            found = each;
            most = count;
        }
    }
    handshakes->ended = found;
    if (found != NULL)
        shutdown(found->fd, SHUT_RDWR);
}

static void remove_established(struct handshakes *handshakes) {
    for (size_t i = handshakes->num_running; i-- > 0;) {
        if (handshakes->running[i]->established)
            remove_running(handshakes, i);
    }
}

/* Returns the oldest that waits, of the client that has fewest; NULL: none may run. */
static struct handshake *find_next(const struct handshakes *handshakes) {
    const struct client *last = NULL;
    struct handshake *found = NULL;
    size_t count = 0, fewest = HANDSHAKES_PER_CLIENT;

    for (struct handshake *each = handshakes->oldest; each != NULL; each = each->next) {
        if (each->client != last)
            count = count_running(handshakes, each->client);
        last = each->client;
        if (count < fewest) {
            found = each;
            fewest = count;
        }
    }
    return found;
}

struct handshake *handshakes_take(struct handshakes *handshakes) {
    struct handshake *found = NULL;

    remove_established(handshakes);
    if (handshakes->has_room && handshakes->num_running < HANDSHAKES_MAX)
        found = find_next(handshakes);
    handshakes->has_room = found != NULL;
    if (found != NULL) {
        unlink_waiting(handshakes, found);
        run_handshake(handshakes, found);
    } else if (handshakes->oldest != NULL && handshakes->ended == NULL) {
        end_long_handshake(handshakes);
    }
    return found;
}

void handshakes_remove(struct handshakes *handshakes, struct handshake *handshake) {
    if (handshake->waits)
        unlink_waiting(handshakes, handshake);
    for (size_t i = handshakes->num_running; i-- > 0;) {
        if (handshakes->running[i] == handshake)
            remove_running(handshakes, i);
    }
}
