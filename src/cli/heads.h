/* SPDX-License-Identifier: Apache-2.0 */
/* heads.h: what the heads of a model do over the requests of --data. */
#pragma once

#include "config/config.h"

#include <attnd/heads.h>

/* The heads of one layer. */
struct layer_heads {
    const char *name; /* of the layer, borrowed */
    struct attn_heads heads;
};

/* Looks at the heads over all requests of --data. `done` is as in request_file_read().
 * The caller owns *ret_heads. Errors: those of request_file_read(); ATTN_E_VALUE for
 * outputs that are not finite. */
attn_status heads_analyse(const struct config *config, const attn_model *model,
                          const char *done, struct attn_heads *ret_heads,
                          attn_error *ret_error);

/* Frees the arrays; a zeroed struct is fine. */
void heads_deinit(struct attn_heads *heads);

/* Prints a line for each head of the layers, with their names if they are several, in the
 * order `sort` of heads_table_print(). Errors: ATTN_E_NOMEM. */
attn_status heads_print(const struct layer_heads *layers, size_t count, int sort,
                        attn_error *ret_error);
