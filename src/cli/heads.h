/* SPDX-License-Identifier: Apache-2.0 */
/* heads.h: what the heads of a model do over --data. */
#pragma once

#include "config/config.h"

#include <attnd/heads.h>

struct hidden;

/* Looks at the heads over state `state` of `hidden`, or where that is NULL over all
 * requests of --data. `done` is as in request_file_read(). The caller owns *ret_heads.
 * Errors: those of request_file_read() or hidden_read(); ATTN_E_VALUE for outputs that
 * are not finite. */
attn_status heads_analyse(const struct config *config, const struct hidden *hidden,
                          size_t state, const attn_model *model, const char *done,
                          struct attn_heads *ret_heads, attn_error *ret_error);

/* Frees the arrays; a zeroed struct is fine. */
void heads_deinit(struct attn_heads *heads);
