/* SPDX-License-Identifier: Apache-2.0 */
/* heads_table.h: the table of what heads do. */
#pragma once

#include <attnd/heads.h>

/* One row, of which the caller fills the first three members. */
struct heads_row {
    const char *layer; /* NULL in all rows: there is only one */
    size_t head;
    attn_head figures;
    double key; /* that the rows are sorted by */
    size_t place;
};

/* Prints a line for each row: in their order if `sort` is 0, else the largest number of
 * column sort - 1 first, and rows without one last. Sorts the rows. Columns that only
 * some models or requests have are left out where no row has a number. */
void heads_table_print(struct heads_row *rows, size_t count, int sort);
