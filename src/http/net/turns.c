/* SPDX-License-Identifier: Apache-2.0 */
/* turns.c: lists of requests that wait, in a list of clients. */
#include "http/net/turns.h"

static void append_flow(struct turns *turns, struct turn_flow *flow) {
    flow->previous = turns->last;
    flow->next = NULL;
    if (turns->last != NULL)
        turns->last->next = flow;
    else
        turns->first = flow;
    turns->last = flow;
}

static void remove_flow(struct turns *turns, struct turn_flow *flow) {
    if (flow->previous != NULL)
        flow->previous->next = flow->next;
    else
        turns->first = flow->next;
    if (flow->next != NULL)
        flow->next->previous = flow->previous;
    else
        turns->last = flow->previous;
}

/* Whether the flow may take one more turn of this round. */
static bool has_share(const struct turns *turns, const struct turn_flow *flow) {
    return flow->round != turns->round || flow->num_taken < TURNS_PER_CLIENT;
}

static void count_turn(struct turns *turns, struct turn_flow *flow) {
    if (flow->round != turns->round)
        flow->num_taken = 0;
    flow->round = turns->round;
    flow->num_taken++;
    turns->num_taken++;
}

bool turn_take(struct turns *turns, struct turn_flow *flow) {
    if (flow->oldest != NULL || turns->num_taken >= TURNS_PER_ROUND ||
        !has_share(turns, flow))
        return false;
    count_turn(turns, flow);
    return true;
}

void turn_wait(struct turns *turns, struct turn_flow *flow, struct turn *turn) {
    if (flow->oldest == NULL)
        append_flow(turns, flow);
    turn->flow = flow;
    turn->previous = flow->newest;
    turn->next = NULL;
    if (flow->newest != NULL)
        flow->newest->next = turn;
    else
        flow->oldest = turn;
    flow->newest = turn;
}

void turn_leave(struct turns *turns, struct turn *turn) {
    struct turn_flow *flow = turn->flow;

    if (turn->previous != NULL)
        turn->previous->next = turn->next;
    else
        flow->oldest = turn->next;
    if (turn->next != NULL)
        turn->next->previous = turn->previous;
    else
        flow->newest = turn->previous;
    turn->flow = NULL;
    if (flow->oldest == NULL)
        remove_flow(turns, flow);
}

void turns_begin_round(struct turns *turns) {
    turns->round++;
    turns->num_taken = 0;
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
