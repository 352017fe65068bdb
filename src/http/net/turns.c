/* SPDX-License-Identifier: Apache-2.0 */
/* turns.c: lists of requests that wait, in a list of clients. */
#include "http/net/turns.h"

static void append_flow(struct turns *turns, struct turn_flow *flow) {
    flow->previous = turns->last;
    flow->next = NULL;
    *(turns->last != NULL ? &turns->last->next : &turns->first) = flow;
    turns->last = flow;
}

static void remove_flow(struct turns *turns, struct turn_flow *flow) {
    *(flow->previous != NULL ? &flow->previous->next : &turns->first) = flow->next;
    *(flow->next != NULL ? &flow->next->previous : &turns->last) = flow->previous;
}

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
    bool given = turn->number != 0; /* and counted then */

    charge_served(turns, now);
    if (given ? flow->round == turns->round && flow->spent_ns >= TURN_NS
              : flow->oldest != NULL || turns->num_taken >= TURNS_PER_ROUND ||
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

void turn_wait(struct turns *turns, struct turn *turn) {
    struct turn_flow *flow = turn->flow;
    /* Few came before it: they were given a turn with it. */
    struct turn *next = turn->number != 0 ? flow->oldest : NULL;
    while (next != NULL && next->number < turn->number)
        next = next->next;

    if (flow->oldest == NULL)
        append_flow(turns, flow);
    if (turn->number == 0)
        turn->number = ++turns->num_waited;
    turn->waits = true;
    turn->next = next;
    turn->previous = next != NULL ? next->previous : flow->newest;
    *(turn->previous != NULL ? &turn->previous->next : &flow->oldest) = turn;
    *(next != NULL ? &next->previous : &flow->newest) = turn;
}

void turn_leave(struct turns *turns, struct turn *turn) {
    struct turn_flow *flow = turn->flow;

    *(turn->previous != NULL ? &turn->previous->next : &flow->oldest) = turn->next;
    *(turn->next != NULL ? &turn->next->previous : &flow->newest) = turn->previous;
    turn->waits = false;
    if (flow->oldest == NULL)
        remove_flow(turns, flow);
}

void turns_begin_round(struct turns *turns) {
    turns->round++;
    turns->num_taken = 0;
    turns->served = NULL;
}

struct turn *turns_give(struct turns *turns) {
    struct turn_flow *flow = turns->first;

    /* All flows take turns in order, so those behind have had as many, or one fewer. */
    if (flow == NULL || turns->num_taken == TURNS_PER_ROUND || !has_share(turns, flow))
        return NULL;
    struct turn *turn = flow->oldest;
    count_turn(turns, flow);
    turn_leave(turns, turn);
    if (flow->oldest != NULL) {
        remove_flow(turns, flow);
        append_flow(turns, flow);
    }
    return turn;
}
