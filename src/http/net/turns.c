/* SPDX-License-Identifier: Apache-2.0 */
/* turns.c: lists of requests that wait, in a list of clients. */
#include "http/net/turns.h"

/* Whether the flow may take one more turn of this round. */
static bool has_share(const struct turns *turns, const struct turn_flow *flow) {
    return flow->round != turns->round ||
           (flow->num_taken < TURNS_PER_CLIENT && flow->spent_ns < TURN_NS);
}

static void count_turn(struct turns *turns, struct turn_flow *flow) {
    if (flow->round != turns->round)
        flow->num_taken = flow->spent_ns = 0;
    flow->round = turns->round;
    flow->num_taken++;
    turns->num_taken++;
}

/* Ends the time of the client that has the thread. */
static void charge_served(struct turns *turns, int64_t now) {
    if (turns->served != NULL)
        turns->served->spent_ns += now - turns->since;
    turns->served = NULL;
}

bool turn_take(struct turns *turns, const struct turn *turn, int64_t now) {
    struct turn_flow *flow = turn->flow;
    bool given = turn->order != 0; /* and counted then */

    charge_served(turns, now);
    if (given ? flow->round == turns->round && flow->spent_ns >= TURN_NS
              : flow->first != NULL || turns->num_taken >= TURNS_PER_ROUND ||
                    !has_share(turns, flow))
        return false;
    if (!given)
        count_turn(turns, flow);
    turns->served = flow;
    turns->since = now;
    return true;
}

void turn_end(struct turns *turns, const struct turn *turn, int64_t now) {
    if (turns->served == turn->flow)
        charge_served(turns, now);
}

/* Returns the place of a request that waits for the first time: its member comes again
 * once the others have had as many. Without members it is the last. */
static uint64_t find_order(const struct turn *turn) {
    const struct turn_flow *flow = turn->flow;
    uint64_t last = flow->last != NULL ? flow->last->order : 0;
    if (turn->member != NULL)
        last = turn->member->last;
    return (last > flow->reached ? last : flow->reached) + 1;
}

/* Returns the last request of the flow that is served before one of this order. */
static struct turn *find_turn_before(const struct turn_flow *flow, uint64_t order) {
    if (flow->first == NULL || flow->first->order > order)
        return NULL;

    struct turn *at = flow->last;
    if (order - flow->first->order < at->order / 2 - flow->first->order / 2) {
        for (at = flow->first; at->next->order <= order;) /* it is nearer */
            at = at->next;
    }
    while (at->order > order)
        at = at->previous;
    return at;
}

void turn_wait(struct turns *turns, struct turn *turn) {
    struct turn_flow *flow = turn->flow;

    if (flow->first == NULL)
        TAILQ_INSERT_TAIL(&turns->flows, flow, links);
    if (turn->order == 0) {
        turn->order = find_order(turn);
        if (turn->member != NULL)
            turn->member->last = turn->order;
    }

    struct turn *previous = find_turn_before(flow, turn->order);
    turn->waits = true;
    turn->previous = previous;
    turn->next = previous != NULL ? previous->next : flow->first;
    *(previous != NULL ? &previous->next : &flow->first) = turn;
    *(turn->next != NULL ? &turn->next->previous : &flow->last) = turn;
}

void turn_leave(struct turns *turns, struct turn *turn) {
    struct turn_flow *flow = turn->flow;

    *(turn->previous != NULL ? &turn->previous->next : &flow->first) = turn->next;
    *(turn->next != NULL ? &turn->next->previous : &flow->last) = turn->previous;
    turn->waits = false;
    if (flow->first == NULL)
        TAILQ_REMOVE(&turns->flows, flow, links);
}

void turns_begin_round(struct turns *turns) {
    turns->round++;
    turns->num_taken = 0;
    turns->served = NULL;
}

struct turn *turns_give(struct turns *turns) {
    struct turn_flow *flow = TAILQ_FIRST(&turns->flows);

    /* All flows take turns in order, so those behind have had as many, or one fewer. */
    if (flow == NULL || turns->num_taken == TURNS_PER_ROUND || !has_share(turns, flow))
        return NULL;
    struct turn *turn = flow->first;
    if (turn->order > flow->reached)
        flow->reached = turn->order;
    count_turn(turns, flow);
    turn_leave(turns, turn);
    if (flow->first != NULL) {
        TAILQ_REMOVE(&turns->flows, flow, links);
        TAILQ_INSERT_TAIL(&turns->flows, flow, links);
    }
    return turn;
}
