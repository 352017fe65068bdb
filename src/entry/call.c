/* SPDX-License-Identifier: Apache-2.0 */
/* call.c: the memory that a call takes, and its end before it is done. */
#include "entry/call.h"

#include "base/machine.h"
#include "base/size.h"

/* Less is allocated without asking how much is free, which takes some microseconds. */
#define UNASKED_BYTES ((size_t)64 * 1024 * 1024)

/* Returns how many bytes are free, of which this call has taken none yet. */
static size_t find_free(struct call *call) {
    if (call->free == 0)
        call->free = machine_free_memory("");
    return call->free;
}

bool call_reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    struct call *call = context;

    size_add_saturating(&call->reserved, bytes);
    if (call->reserved <= UNASKED_BYTES || call->reserved <= find_free(call))
        return true;
    return wire_problem_set(ret_problem, WIRE_E_OUT_OF_MEMORY, NULL,
                            "the call needs %zu bytes, but %zu are free; send fewer or "
                            "shorter sequences",
                            call->reserved, call->free);
}

bool call_check_limit(struct call *call) {
    return !crew_limit_is_over(&call->crew.limit) ||
           wire_problem_set(&call->problem, WIRE_E_DEADLINE_EXCEEDED, NULL,
                            "the result was not computed within timeout_ms; allow more "
                            "time, or send a smaller request");
}

void *call_alloc_scratch(struct call *call) {
    size_t bytes = call->sizes.scratch_bytes;
    if (!call_reserve(call, bytes, &call->problem) || !call_check_limit(call))
        return NULL;
    void *scratch = arena_alloc(&call->arena, bytes, 1);
    if (scratch == NULL)
        wire_problem_set_no_memory(&call->problem);
    return scratch;
}
