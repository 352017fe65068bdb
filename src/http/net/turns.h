/* SPDX-License-Identifier: Apache-2.0 */
/* turns.h: in which order an HTTP thread serves requests that have arrived complete.
 *
 * In each of its runs libmicrohttpd serves every connection that is ready. So a client
 * with thousands of them would get nearly all the time of the thread. Therefore a round,
 * that is a run, has a bounded number of turns, and a client gets some of them at most.
 * Requests beyond that wait, without cost to others, until they get a turn of a later
 * round: those of a client in the order in which they came, and clients by turns.
 *
 * Everything belongs to the HTTP thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As many requests as an honest client has connections: it never waits. */
#define TURNS_PER_CLIENT 64
#define TURNS_PER_ROUND  256

struct turn_flow;

/* A member of a request; zeroed, it does not wait. */
struct turn {
    struct turn *previous, *next; /* while it waits; `previous` is older */
    struct turn_flow *flow;       /* NULL: it does not wait */
};

/* The requests of one client on one thread. It exists while one of them waits; zeroed,
 * there are none. */
struct turn_flow {
    struct turn *oldest, *newest;      /* of those that wait */
    struct turn_flow *previous, *next; /* while one waits; `previous` is served before */
    uint64_t round;                    /* in which it took turns last */
    size_t num_taken;                  /* in that round */
};

/* Zeroed, no request waits. */
struct turns {
    uint64_t round;
    size_t num_taken;               /* in this round */
    struct turn_flow *first, *last; /* of those with requests that wait */
};

/* Takes a turn of this round for a request that has just arrived. Returns false when it
 * must wait: turn_wait() comes next. */
bool turn_take(struct turns *turns, struct turn_flow *flow);

/* Lets a request wait for its turn. */
void turn_wait(struct turns *turns, struct turn_flow *flow, struct turn *turn);

/* Removes a request that waits. */
void turn_leave(struct turns *turns, struct turn *turn);

/* Begins the next round. Call it after a run, and turns_give() then. */
void turns_begin_round(struct turns *turns);

/* Returns a request that waited and has a turn in this round, or NULL. */
struct turn *turns_give(struct turns *turns);
