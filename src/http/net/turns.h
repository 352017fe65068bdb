/* SPDX-License-Identifier: Apache-2.0 */
/* turns.h: in which order an HTTP thread serves requests that have arrived complete.
 *
 * In each of its runs libmicrohttpd serves every connection that is ready. So a client
 * with thousands of them would get nearly all the time of the thread. Therefore a round,
 * that is a run, has a bounded number of turns. A client gets some of them, and no more
 * once they have taken TURN_NS. Requests beyond that wait, without cost to others, until
 * they get a turn of a later round: clients by turns, the members of a client by turns,
 * and those of one member in the order in which they came.
 *
 * What a request costs is known afterwards. So turns are given by their number alone, and
 * turn_take() looks at the time: a request may wait again.
 *
 * Everything belongs to the HTTP thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/* As many requests as an honest client has connections: it never waits. */
#define TURNS_PER_CLIENT 64
#define TURNS_PER_ROUND  256
#define TURN_NS          ((int64_t)5000000) /* the last request may exceed it */

struct turn_flow;

/* One of those that share a flow, such as an address that uses a key. Zeroed, it never
 * waited. */
struct turn_member {
    uint64_t last; /* the order of its last request that waited */
};

/* A member of a request. */
struct turn {
    struct turn_flow *flow;       /* its client's, set before the first turn_take() */
    struct turn_member *member;   /* NULL: the flow has none */
    struct turn *previous, *next; /* while it waits; `previous` is served before */
    uint64_t order;               /* in its flow; 0: it never waited */
    bool waits;
};

/* The requests of one client on one thread; zeroed, there are none. */
struct turn_flow {
    struct turn *first, *last;    /* of those that wait */
    uint64_t reached;             /* the order of the last that was served */
    TAILQ_ENTRY(turn_flow) links; /* while one waits */
    uint64_t round;               /* in which it took turns last */
    size_t num_taken;             /* in that round */
    int64_t spent_ns;             /* as well */
};

/* Zeroed but for the head of its list, no request waits. */
struct turns {
    uint64_t round;
    size_t num_taken;              /* in this round */
    TAILQ_HEAD(, turn_flow) flows; /* with requests that wait, in the order of turns */
    struct turn_flow *served;      /* whose request has the thread; NULL: none has */
    int64_t since;                 /* clock_now_ns */
};

/* Takes a turn of this round for a request that has just arrived, or that turns_give()
 * has returned. Its client has the thread until turn_end(), or until the next call.
 * Returns false when it must wait: turn_wait() comes next. */
bool turn_take(struct turns *turns, const struct turn *turn, int64_t now);

/* Ends the time of the request, if its client has the thread. The flow may be freed
 * afterwards. */
void turn_end(struct turns *turns, const struct turn *turn, int64_t now);

/* Lets a request wait for its turn, before those that came later. */
void turn_wait(struct turns *turns, struct turn *turn);

/* Removes a request that waits. */
void turn_leave(struct turns *turns, struct turn *turn);

/* Begins the next round. Call it after a run, and turns_give() then. */
void turns_begin_round(struct turns *turns);

/* Returns a request that waited and may take a turn in this round, or NULL. */
struct turn *turns_give(struct turns *turns);
