/* SPDX-License-Identifier: Apache-2.0 */
/* heads_table.c: prints heads, one on a line, in the order of any column. */
#include "cli/heads_table.h"

#include "base/error.h"
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct heads_row {
    const char *layer;
    size_t head;
    attn_head figures;
    double key; /* that the rows are sorted by */
    size_t place;
};

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

/* A width of 0 leaves out the layer. */
static void print_row(const struct heads_row *row, size_t layer_width,
                      const bool shown[NUM_COLUMNS]) {
    if (layer_width > 0)
        printf("%-*s  ", (int)layer_width, row->layer);
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

/* Describes head `head`; `place` is that of its row before rows are sorted. */
static struct heads_row make_row(const struct layer_heads *layer, size_t head,
                                 size_t place, int sort) {
    struct heads_row row = {.layer = layer->name, .head = head, .place = place};

    attn_heads_describe(&layer->heads, head, &row.figures);
    if (sort > 0)
        row.key = find_figure(&row, &columns[sort - 1]);
    if (isnan(row.key))
        row.key = (double)-INFINITY;
    return row;
}

attn_status heads_table_print(const struct layer_heads *layers, size_t count, int sort,
                              attn_error *ret_error) {
    size_t total = 0, used = 0, width = strlen("layer");
    bool shown[NUM_COLUMNS];

    for (size_t i = 0; i < count; i++)
        total += layers[i].heads.num_heads;
    struct heads_row *rows = calloc(total + 1, sizeof *rows);
    if (rows == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    for (size_t i = 0; i < count; i++) {
        width = size_max(width, strlen(layers[i].name));
        for (size_t head = 0; head < layers[i].heads.num_heads; head++, used++)
            rows[used] = make_row(&layers[i], head, used, sort);
    }
    qsort(rows, total, sizeof *rows, compare_rows);

    if (count == 1)
        width = 0;
    else
        printf("%-*s  ", (int)width, "layer");
    printf("head");
    for (size_t c = 0; c < NUM_COLUMNS; c++) {
        shown[c] = is_shown(&columns[c], rows, total);
        if (shown[c])
            printf("  %*s", columns[c].width, columns[c].name);
    }
    printf("  tags\n");
    for (size_t i = 0; i < total; i++)
        print_row(&rows[i], width, shown);
    free(rows);
    return ATTN_OK;
}
