/* SPDX-License-Identifier: Apache-2.0 */
/* heads_table.h: the table of what heads do. */
#pragma once

#include <attnd/heads.h>

/* The heads of one layer. */
struct layer_heads {
    const char *name; /* of the layer, borrowed */
    struct attn_heads heads;
};

/* Prints a line for each head of the layers, with their names if they are several: in
 * their order if `sort` is 0, else the largest number of column sort - 1 first, and heads
 * without one last. Columns that only some models or requests have are left out where no
 * head has a number. Errors: ATTN_E_NOMEM. */
attn_status heads_table_print(const struct layer_heads *layers, size_t count, int sort,
                              attn_error *ret_error);
