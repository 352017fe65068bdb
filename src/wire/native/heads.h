/* SPDX-License-Identifier: Apache-2.0 */
/* heads.h: the JSON that POST /v1/heads replies with (docs/protocol.md). */
#pragma once

#include "base/buf.h"
#include "wire/problem.h"

#include <attnd/heads.h>

/* Returns the most bytes that the reply for a model can have; SIZE_MAX when that is too
 * large to be computed. */
size_t wire_native_heads_bound(const attn_model *model);

/* Checks that all sums are finite, since JSON has no other numbers. Returns false with
 * *ret_problem set (Result not finite). */
bool wire_native_heads_check(const attn_heads *heads, struct wire_problem *ret_problem);

/* Adds the reply for the model of that name to `reply`, with a note of its rows unless
 * that is NULL. Without a model it has neither gram nor importance. */
void wire_native_heads_print(const char *model, const char *note, const attn_heads *heads,
                             struct buf *reply);
