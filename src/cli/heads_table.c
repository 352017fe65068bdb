/* SPDX-License-Identifier: Apache-2.0 */
/* heads_table.c: prints heads, one on a line, in the order of any column. */
#include "cli/heads_table.h"

#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct column {
    const char *name;
    size_t offset; /* of a double in attn_head */
    int width, decimals;
    bool optional; /* not every model or request has it */
} columns[] = {
    /* config/options.c lists them for --sort */
    {"importance", offsetof(attn_head, importance), 10, 6, false},
    {"entropy", offsetof(attn_head, entropy), 7, 4, false},
    {"distance", offsetof(attn_head, mean_distance), 8, 4, false},
    {"self", offsetof(attn_head, mass_on_self), 8, 4, false},
    {"first", offsetof(attn_head, mass_on_first), 8, 4, false},
    {"previous", offsetof(attn_head, mass_on_previous), 8, 4, false},
    {"sink", offsetof(attn_head, mass_on_sink), 8, 4, true},
    {"target", offsetof(attn_head, mass_on_target), 8, 4, true},
    {"largest", offsetof(attn_head, target_is_largest), 8, 4, true},
};

#define NUM_COLUMNS (sizeof columns / sizeof columns[0])

static double find_figure(const struct heads_row *row, const struct column *column) {
    double figure;
    memcpy(&figure, (const char *)&row->figures + column->offset, sizeof figure);
    return figure;
}

/* Whether a column is printed. */
static bool is_shown(const struct column *column, const struct heads_row *rows,
                     size_t count) {
    bool shown = !column->optional;
    for (size_t i = 0; i < count && !shown; i++)
        shown = !isnan(find_figure(&rows[i], column));
    return shown;
}

static int compare_rows(const void *a, const void *b) {
    const struct heads_row *row = a, *other = b;

    if (row->key != other->key)
        return row->key < other->key ? 1 : -1;
    return row->place < other->place ? -1 : 1;
}

static void sort_rows(struct heads_row *rows, size_t count, int sort) {
    for (size_t i = 0; i < count; i++) {
        double figure = sort > 0 ? find_figure(&rows[i], &columns[sort - 1]) : 0;
        rows[i].place = i;
        rows[i].key = isnan(figure) ? (double)-INFINITY : figure;
    }
    qsort(rows, count, sizeof *rows, compare_rows);
}

static void print_row(const struct heads_row *row, int layer_width,
                      const bool shown[NUM_COLUMNS]) {
    if (row->layer != NULL)
        printf("%-*s  ", layer_width, row->layer);
    printf("%4zu", row->head);
    for (size_t c = 0; c < NUM_COLUMNS; c++) {
        double figure = find_figure(row, &columns[c]);
        if (shown[c] && isnan(figure))
            printf("  %*s", columns[c].width, "-");
        else if (shown[c])
            printf("  %*.*f", columns[c].width, columns[c].decimals, figure);
    }
    for (size_t tag = 0; row->figures.tags[tag] != NULL; tag++)
        printf("%s%s", tag == 0 ? "  " : ", ", row->figures.tags[tag]);
    putchar('\n');
}

void heads_table_print(struct heads_row *rows, size_t count, int sort) {
    bool shown[NUM_COLUMNS];
    size_t width = strlen("layer");

    for (size_t i = 0; i < count; i++)
        width = size_max(width, rows[i].layer != NULL ? strlen(rows[i].layer) : 0);
    sort_rows(rows, count, sort);

    if (count > 0 && rows[0].layer != NULL)
        printf("%-*s  ", (int)width, "layer");
    printf("head");
    for (size_t c = 0; c < NUM_COLUMNS; c++) {
        shown[c] = is_shown(&columns[c], rows, count);
        if (shown[c])
            printf("  %*s", columns[c].width, columns[c].name);
    }
    printf("  tags\n");
    for (size_t i = 0; i < count; i++)
        print_row(&rows[i], (int)width, shown);
}
