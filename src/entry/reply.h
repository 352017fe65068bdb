/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h: the results of one call, and their memory. */
#pragma once

#include "base/arena.h"
#include "wire/reply.h"

#include <attnd/program.h>

/* Begins as zero. */
struct attn_reply {
    struct arena arena; /* of all that the reply has */
    char *text;
    size_t num_arrays;
    attn_array arrays[WIRE_REPLY_ARRAYS_MAX];
};

/* Lists the arrays of a result, whose numbers are in the reply's arena, and writes its
 * text: Result not finite, Out of memory. */
bool entry_reply_fill(attn_reply *reply, const struct wire_request *request,
                      const attn_result *result, struct wire_problem *ret_problem);
