/* SPDX-License-Identifier: Apache-2.0 */
/* bias.c: fills tiles of biases, in the layout of either form of the kernels. */
#include "math/attend/bias.h"

#include <math.h>
#include <string.h>

/* The tile of one panel. */
struct tile {
    const struct panel_work *work;
    size_t first;              /* the panel's first key, in the sequence */
    struct range keys;         /* those that any row attends to, from `first` on */
    size_t row_step, key_step; /* floats from one row, or key, to the next */
    float *data;
};

/* Returns what a head adds to the score of a key whose position, less the query's, is
 * `distance`. */
static float distance_bias(const attn_model *model, size_t head, ptrdiff_t distance) {
    const ptrdiff_t farthest = (ptrdiff_t)model->info.bias_distance;

    if (model->info.bias == ATTN_BIAS_ALIBI)
        return model->alibi_slopes[head] * (float)distance;
    if (distance < -farthest)
        distance = -farthest;
    if (distance > farthest)
        distance = farthest;
    return model->distance_bias[head * (size_t)(2 * farthest + 1) +
                                (size_t)(distance + farthest)];
}

/* Returns the position of a key less that of the query of a row. */
static ptrdiff_t find_distance(const struct tile *t, size_t c, size_t key) {
    const struct mask *mask = t->work->mask;
    return (ptrdiff_t)mask_key_position(mask, t->first + key) -
           (ptrdiff_t)mask_position(mask, work_query(t->work, c));
}

/* Returns whether each distance follows from the first one: the rows are of one head, and
 * positions are one apart, of rows as of keys. */
static bool is_regular(const struct tile *t) {
    const struct panel_work *work = t->work;
    const ptrdiff_t start = find_distance(t, 0, t->keys.first);

    for (size_t c = 1; c < work->num_queries; c++) {
        if (work_head(work, c) != work_head(work, 0) ||
            find_distance(t, c, t->keys.first) != start - (ptrdiff_t)c)
            return false;
    }
    for (size_t k = t->keys.first; work->mask->key_positions != NULL && k < t->keys.end;
         k++) {
        if (find_distance(t, 0, k) != start + (ptrdiff_t)(k - t->keys.first))
            return false;
    }
    return true;
}

/* Fills a regular tile of attend(), whose rows of keys are parts of one line: that of all
 * distances, the largest first. */
static void fill_from_line(const struct tile *t, float *line) {
    const struct panel_work *work = t->work;
    size_t width = work->num_queries, count = t->keys.end - t->keys.first;
    const ptrdiff_t largest = find_distance(t, 0, t->keys.end - 1);

    for (size_t i = 0; i < count + width - 1; i++)
        line[i] =
            distance_bias(work->run->model, work_head(work, 0), largest - (ptrdiff_t)i);
    for (size_t k = 0; k < count; k++)
        memcpy(t->data + (t->keys.first + k) * t->key_step, line + count - 1 - k,
               width * sizeof *line);
}

static void fill_each(const struct tile *t) {
    const struct panel_work *work = t->work;

    for (size_t c = 0; c < work->num_queries; c++) {
        size_t head = work_head(work, c);
        for (size_t k = t->keys.first; k < t->keys.end; k++)
            t->data[c * t->row_step + k * t->key_step] =
                distance_bias(work->run->model, head, find_distance(t, c, k));
    }
}

static void mask_pairs(const struct tile *t) {
    const struct panel_work *work = t->work;

    for (size_t c = 0; c < work->num_queries; c++) {
        size_t query = work_query(work, c);
        for (size_t k = t->keys.first; k < t->keys.end; k++) {
            if (!mask_attends(work->mask, query, t->first + k))
                t->data[c * t->row_step + k * t->key_step] = -INFINITY;
        }
    }
}

void bias_fill(const struct panel_work *work, size_t first, bool few,
               struct query_panel *panel) {
    const struct run *run = work->run;
    const attn_bias kind = run->model->info.bias;
    size_t columns = work->kernels->columns;
    /* Those of a longer panel are after all that any row attends to. */
    size_t key_len =
        panel->key_len < KERNEL_PIECE_KEYS ? panel->key_len : KERNEL_PIECE_KEYS;
    size_t end = first + key_len;
    /* Whole vectors of any set. */
    size_t row =
        (key_len + KERNEL_COLUMNS_MAX - 1) / KERNEL_COLUMNS_MAX * KERNEL_COLUMNS_MAX;
    struct tile tile = {
        .work = work,
        .first = first,
        .keys = {work->keys.first > first ? work->keys.first - first : 0,
                 (work->keys.end < end ? work->keys.end : end) - first},
        .row_step = few ? row : 1,
        .key_step = few ? 1 : columns,
        .data = run->thread_scratch + work->thread * run->plan->thread_floats +
                run->plan->thread_bias,
    };

    if ((kind == ATTN_BIAS_NONE && !work->mask->by_pair) ||
        tile.keys.first >= tile.keys.end) /* with sinks, rows may have no keys at all */
        return;
    panel->bias = tile.data;
    panel->bias_ld = few ? row : columns;
    /* The kernels read lanes of nobody, too. */
    if (kind == ATTN_BIAS_NONE || few || work->num_queries < columns)
        memset(tile.data, 0,
               (few ? work->num_queries * row : key_len * columns) * sizeof *tile.data);
    if (kind != ATTN_BIAS_NONE && !few && is_regular(&tile))
        fill_from_line(&tile, tile.data + key_len * columns);
    else if (kind != ATTN_BIAS_NONE)
        fill_each(&tile);
    if (work->mask->by_pair)
        mask_pairs(&tile);
}
