/* SPDX-License-Identifier: Apache-2.0 */
/* call.h: one call of a program, between the functions that take it through its
 * phases. */
#pragma once

#include "base/arena.h"
#include "entry/crew.h"
#include "wire/reply.h"

/* The results of a call. Begins as zero. */
struct attn_reply {
    struct arena arena; /* of all that the reply has */
    char *text;
    size_t num_arrays;
    attn_array arrays[WIRE_REPLY_ARRAYS_MAX];
};

struct call {
    struct crew_call crew;
    attn_parallel parallel; /* of the request */
    bool analyses;          /* what heads do, instead of attention */
    const attn_array *sums; /* where sums of heads begin; NULL: at 0 */
    struct arena arena;     /* of what is read, and scratch */
    size_t reserved, free;  /* bytes; `free` is 0 until it is asked for */
    struct wire_request request;
    attn_sizes sizes;
    attn_reply *reply;
    struct wire_problem problem;
};

/* wire_input.reserve, whose context is a call: refuses more than is free. */
bool call_reserve(void *context, size_t bytes, struct wire_problem *ret_problem);

/* Returns whether the call is not over; false with call->problem set. */
bool call_check_limit(struct call *call);

/* Reserves and allocates the scratch of the plan, unless the call is over; NULL with
 * call->problem set. */
void *call_alloc_scratch(struct call *call);

/* --- heads.c --- */

/* Describes the heads of a planned request, and of those that the caller's sums are of,
 * and makes the reply. Returns false with call->problem set. */
bool call_analyse_heads(struct call *call);

/* --- reply.c --- */

/* Makes the reply of results, whose numbers are in its arena. Returns false with
 * call->problem set: Result not finite, Out of memory. */
bool call_make_reply(struct call *call, const attn_result *result);
