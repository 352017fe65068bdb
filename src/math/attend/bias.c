/* SPDX-License-Identifier: Apache-2.0 */
/* bias.c: fills tiles of biases, in the layout of either form of the kernels. */
#include "math/attend/bias.h"

#include "base/dtype.h"
#include "base/pace.h"
#include "base/size.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The tile of one panel, and what its numbers are made from. Plain loops over arrays of
 * 32 bits are what compilers vectorise. */
struct tile {
    const struct panel_work *work;
    const attn_model *model;
    struct range keys; /* those that any row attends to, from the panel's first on */
    size_t row_step, key_step; /* floats from one row, or key, to the next */
    float *data;
    int32_t key_at[KERNEL_CHUNK_KEYS]; /* positions, from keys.first on */
    /* Of each row: its position, those that it attends to, and the slope or the biases by
     * distance of its head. */
    int32_t at[KERNEL_COLUMNS_MAX], low[KERNEL_COLUMNS_MAX], high[KERNEL_COLUMNS_MAX];
    size_t prefix; /* of the keys in key_at, the first ones go up to these instead */
    int32_t prefix_high[KERNEL_COLUMNS_MAX];
    float slope[KERNEL_COLUMNS_MAX];
    const float *table[KERNEL_COLUMNS_MAX]; /* its entry for distance 0 */
    float lowest; /* what a bias below the range of float32 becomes */
};

static inline float keep_in_range(float bias, float lowest) {
    return bias < -FLT_MAX ? lowest : bias;
}

static int32_t narrow_position(size_t position) {
    return position < INT32_MAX ? (int32_t)position : INT32_MAX;
}

static void find_positions(struct tile *t, size_t first) {
    const struct panel_work *work = t->work;
    const struct mask *mask = work->mask;
    const attn_model *model = t->model;
    const struct model_array *table = &model->arrays[MODEL_DISTANCE_BIAS];
    size_t farthest = model->info.score.bias_distance;

    t->prefix = first + t->keys.first < mask->prefix_len
                    ? mask->prefix_len - first - t->keys.first
                    : 0;
    for (size_t k = t->keys.first; k < t->keys.end; k++)
        t->key_at[k - t->keys.first] =
            narrow_position(mask_key_position(mask, first + k));
    for (size_t c = 0; c < t->work->num_queries; c++) {
        size_t query = work->row_queries[c], head = work->row_heads[c];
        struct mask_allowed allowed = mask_find_allowed(mask, query);

        t->at[c] = narrow_position(mask_position(mask, query));
        t->low[c] = narrow_position(allowed.low);
        t->high[c] = narrow_position(allowed.high);
        t->prefix_high[c] = narrow_position(allowed.prefix_high);
        if (model->arrays[MODEL_SLOPES].numbers != NULL)
            t->slope[c] = model->arrays[MODEL_SLOPES].numbers[head];
        else if (table->numbers != NULL)
            t->table[c] = table->numbers + head % table->rows * table->columns + farthest;
    }
}

/* Returns whether each distance follows from the first one: the rows are of one head, and
 * positions are one apart, of rows as of keys. */
static bool is_regular(const struct tile *t) {
    const struct panel_work *work = t->work;
    size_t count = t->keys.end - t->keys.first;

    for (size_t c = 1; c < work->num_queries; c++) {
        if (work->row_heads[c] != work->row_heads[0] || t->at[c] - t->at[0] != (int32_t)c)
            return false;
    }
    for (size_t k = 1; work->mask->key_positions != NULL && k < count; k++) {
        if (t->key_at[k] - t->key_at[0] != (int32_t)k)
            return false;
    }
    return true;
}

/* Returns the slope times a position, where both are rounded, and so is the product. */
static inline float rounded_product(float slope, int32_t position) {
    return dtype_round_bf16(slope * dtype_round_bf16((float)position));
}

/* Returns the bias of keys at this distance from a query. */
static inline float look_up(const float *table, int32_t farthest, int32_t distance) {
    distance = distance < -farthest ? -farthest : distance;
    return table[distance > farthest ? farthest : distance];
}

/* Fills a regular tile of attend(), whose rows of keys are parts of one line of all
 * distances, the largest first. */
static void fill_from_line(const struct tile *t, float *line) {
    size_t width = t->work->num_queries, count = t->keys.end - t->keys.first;
    const int32_t largest = t->key_at[count - 1] - t->at[0];
    const int32_t farthest = narrow_position(t->model->info.score.bias_distance);

    for (size_t i = 0; i < count + width - 1; i++)
        line[i] = t->model->info.score.bias == ATTN_BIAS_ALIBI
                      ? t->slope[0] * (float)(largest - (int32_t)i)
                      : look_up(t->table[0], farthest, largest - (int32_t)i);
    for (size_t k = 0; k < count; k++)
        memcpy(t->data + (t->keys.first + k) * t->key_step, line + count - 1 - k,
               width * sizeof *line);
}

/* Fills the tile of attend_few(): a row at a time. */
static void fill_rows(const struct tile *t) {
    const attn_bias kind = t->model->info.score.bias;
    const int32_t farthest = narrow_position(t->model->info.score.bias_distance);
    const float scale = (float)t->model->info.score.scale;
    size_t count = t->keys.end - t->keys.first;

    for (size_t c = 0; c < t->work->num_queries; c++) {
        float *to = t->data + c * t->row_step + t->keys.first;
        const int32_t at = t->at[c], low = t->low[c];
        const float slope = t->slope[c], *table = t->table[c];
        const float own = rounded_product(slope, at);

        for (size_t k = 0; kind == ATTN_BIAS_ALIBI && k < count; k++)
            to[k] = keep_in_range(slope * (float)(t->key_at[k] - at), t->lowest);
        for (size_t k = 0; kind == ATTN_BIAS_ALIBI_ROUNDED && k < count; k++)
            to[k] = scale * (rounded_product(slope, t->key_at[k]) - own);
        for (size_t k = 0; kind == ATTN_BIAS_BUCKETS && k < count; k++)
            to[k] = look_up(table, farthest, t->key_at[k] - at);
        for (size_t k = 0; t->work->mask->by_pair && k < count; k++) {
            const int32_t high = k < t->prefix ? t->prefix_high[c] : t->high[c];
            to[k] = ((t->key_at[k] < low) | (t->key_at[k] > high)) ? -INFINITY : to[k];
        }
    }
}

/* Fills the tile of attend(): a key at a time. */
static void fill_keys(const struct tile *t, bool biased) {
    const attn_bias kind = biased ? t->model->info.score.bias : ATTN_BIAS_NONE;
    const int32_t farthest = narrow_position(t->model->info.score.bias_distance);
    const float scale = (float)t->model->info.score.scale;
    size_t width = t->work->num_queries, count = t->keys.end - t->keys.first;
    float own[KERNEL_COLUMNS_MAX];

    for (size_t c = 0; kind == ATTN_BIAS_ALIBI_ROUNDED && c < width; c++)
        own[c] = rounded_product(t->slope[c], t->at[c]);
    for (size_t k = 0; k < count; k++) {
        float *to = t->data + (t->keys.first + k) * t->key_step;
        const int32_t at = t->key_at[k], *high = k < t->prefix ? t->prefix_high : t->high;

        for (size_t c = 0; kind == ATTN_BIAS_ALIBI && c < width; c++)
            to[c] = t->slope[c] * (float)(at - t->at[c]);
        for (size_t c = 0; kind == ATTN_BIAS_ALIBI_ROUNDED && c < width; c++)
            to[c] = scale * (rounded_product(t->slope[c], at) - own[c]);
        for (size_t c = 0; kind == ATTN_BIAS_BUCKETS && c < width; c++)
            to[c] = look_up(t->table[c], farthest, at - t->at[c]);
        for (size_t c = 0; t->work->mask->by_pair && c < width; c++)
            to[c] = ((at < t->low[c]) | (at > high[c])) ? -INFINITY : to[c];
    }
}

/* --- terms of content and position --- */

/* Returns which positional rows the distances of some keys from the queries have. */
static struct range find_position_rows(const struct tile *t, struct range keys) {
    const int32_t farthest = narrow_position(t->model->info.score.bias_distance);
    const struct model_array *all_heads = &t->model->arrays[MODEL_DISTANCE_BIAS];
    const float *table = all_heads->numbers + farthest;
    struct range rows = {SIZE_MAX, 0};
    int32_t at[2] = {INT32_MAX, 0}; /* the least and the largest of the queries */

    for (size_t c = 0; c < t->work->num_queries; c++) {
        at[0] = t->at[c] < at[0] ? t->at[c] : at[0];
        at[1] = t->at[c] > at[1] ? t->at[c] : at[1];
    }
    for (size_t k = keys.first; k < keys.end; k++) {
        for (size_t i = 0; i < 2; i++) {
            int32_t distance = t->key_at[k - t->keys.first] - at[i];
            size_t row = (size_t)look_up(table, farthest, distance);
            rows.first = size_min(rows.first, row);
            rows.end = size_max(rows.end, row + 1);
        }
    }
    return rows;
}

/* Writes the scores of some queries or keys, `x` [count, size], and some positional rows
 * of a head to `scores` [count, rows of `part`]: 0 where the model has no such rows. */
static void score_positions(const struct tile *t, const float *x, size_t x_ld,
                            size_t count, enum model_array_id which, struct range part,
                            float *scores) {
    const struct model_array *array = &t->model->arrays[which];
    const attn_model_info *info = &t->model->info;
    size_t first = t->work->row_heads[0] * info->width.score;
    size_t width = part.end - part.first, ends[KERNEL_FEW_MAX];
    float *rows[KERNEL_FEW_MAX];

    for (size_t i = 0; i < count; i++) {
        ends[i] = width;
        rows[i] = scores + i * width;
    }
    if (array->numbers == NULL) {
        memset(scores, 0, count * width * sizeof *scores);
        return;
    }
    t->work->kernels->in_float32->score(&(struct query_panel){
        .queries = x,
        .queries_ld = x_ld,
        .num_queries = count,
        .keys = array->numbers + part.first * array->columns + first,
        .keys_ld = array->columns,
        .key_len = width,
        .end_keys = ends,
        .score_size = info->width.score,
        .scale = (float)info->score.scale,
        .weights = rows,
        .scratch =
            run_thread(t->work->run, t->work->thread, t->work->run->thread.kernels),
    });
}

/* Copies some keys of a panel as rows of float32, [keys, size]. */
static void unpack_keys(const struct tile *t, const struct query_panel *panel,
                        struct range keys, float *to) {
    const struct kernels *kernels = t->work->kernels;
    size_t size = t->model->info.width.score;
    size_t words = (size + kernels->k_step - 1) / kernels->k_step;

    for (size_t k = keys.first, end; k < keys.end; to += (end - k) * size, k = end) {
        size_t own = panel->keys_in_panels ? k % KEY_BLOCK : 0;
        size_t block = size_min(panel->key_len - (k - own), KEY_BLOCK);
        const float *from = panel->keys + (k - own) * panel->keys_ld + own;

        end = panel->keys_in_panels ? size_min(k - own + block, keys.end) : k + 1;
        if (panel->keys_in_panels)
            kernels->transpose(from, block, words, end - k, to, size);
        else
            memcpy(to, from, words * sizeof *to);
        for (size_t i = 0; kernels->k_step == 2 && i < end - k; i++)
            for (size_t d = size; d-- > 0;) { /* from the last one on: in place */
                uint32_t pair;
                memcpy(&pair, to + i * size + d / 2, sizeof pair);
                pair = d % 2 == 0 ? pair << 16 : pair & 0xffff0000U;
                memcpy(to + i * size + d, &pair, sizeof pair);
            }
    }
}

/* The terms of content of a block of keys: products with positional rows. */
struct content_terms {
    const float *of_queries, *of_keys; /* [queries, rows] and [keys, part] */
    struct range rows, part, keys;     /* positional rows, and keys of the panel */
};

/* Takes for each pair the terms of its distance's row. */
static void take_terms(const struct tile *t, const struct content_terms *terms) {
    const int32_t farthest = narrow_position(t->model->info.score.bias_distance);
    const struct range keys = terms->keys;
    const int32_t *key_at = t->key_at + (keys.first - t->keys.first);
    size_t width = t->work->num_queries, part = terms->part.end - terms->part.first,
           rows = terms->rows.end - terms->rows.first;
    const float *of_queries = terms->of_queries + terms->part.first - terms->rows.first;
    int32_t row[KERNEL_COLUMNS_MAX] = {0}; /* of the part: 0, where it has one */

    for (size_t k = keys.first; k < keys.end; k++) {
        const float *of_key = terms->of_keys + (k - keys.first) * part;
        for (size_t c = 0; part > 1 && c < width; c++)
            row[c] = (int32_t)look_up(t->table[c], farthest,
                                      key_at[k - keys.first] - t->at[c]) -
                     (int32_t)terms->part.first;
        for (size_t c = 0; c < width; c++) {
            float term = of_queries[c * rows + (size_t)row[c]] + of_key[row[c]];
            t->data[c * t->row_step + k * t->key_step] =
                term + (term - term); /* never -INFINITY */
        }
    }
}

/* Fills the tile of one head with terms of content: products with the rows of all
 * distances, of which each pair takes its own. */
static void fill_content(const struct tile *t, const struct query_panel *panel) {
    const attn_model_info *info = &t->model->info;
    const bool has_queries = t->model->arrays[MODEL_POSITION_QUERIES].numbers != NULL;
    size_t size = info->width.score, room = KERNEL_FEW_MAX * info->score.position_rows;
    float *of_queries =
        run_thread(t->work->run, t->work->thread, t->work->run->thread.positions);
    float *of_keys = of_queries + room, *unpacked = of_keys + room;
    struct content_terms terms = {.of_queries = of_queries,
                                  .of_keys = of_keys,
                                  .rows = find_position_rows(t, t->keys)};

    score_positions(t, panel->queries, panel->queries_ld, t->work->num_queries,
                    MODEL_POSITION_KEYS, terms.rows, of_queries);
    for (size_t k = t->keys.first; k < t->keys.end; k = terms.keys.end) {
        terms.keys = (struct range){k, size_min(k + KERNEL_FEW_MAX, t->keys.end)};
        terms.part = find_position_rows(t, terms.keys);
        if (has_queries)
            unpack_keys(t, panel, terms.keys, unpacked);
        score_positions(t, unpacked, size, terms.keys.end - k, MODEL_POSITION_QUERIES,
                        terms.part, of_keys);
        take_terms(t, &terms);
    }
}

static inline float add_to(float score, float bias, float lowest) {
    bool masked = (score == -INFINITY) | (bias == -INFINITY);
    return masked ? -INFINITY : keep_in_range(score + bias, lowest);
}

/* Copies the biases of the request for some keys to a row of `to` for each key. Those of
 * queries of one head that follow each other are transposed at once. */
static void copy_to_keys(const struct tile *t, size_t first, struct range keys, float *to,
                         size_t to_ld) {
    const struct panel_work *work = t->work;
    const size_t *heads = work->row_heads, *queries = work->row_queries;

    for (size_t c = 0, end; c < work->num_queries; c = end) {
        for (end = c + 1; end < work->num_queries && heads[end] == heads[c] &&
                          queries[end] == queries[c] + (end - c);
             end++)
            continue;
        work->kernels->transpose(
            mask_bias(work->mask, heads[c], queries[c]) + first + keys.first,
            work->mask->bias_row_ld, end - c, keys.end - keys.first, to + c, to_ld);
    }
}

/* Copies the biases of the request alone to the tile. */
static void copy_given(const struct tile *t, size_t first, bool few) {
    const struct panel_work *work = t->work;
    const size_t from = t->keys.first, bytes = (t->keys.end - from) * sizeof *t->data;

    if (!few)
        copy_to_keys(t, first, t->keys, t->data + from * t->key_step, t->key_step);
    for (size_t c = 0; few && c < work->num_queries; c++)
        memcpy(t->data + c * t->row_step + from,
               mask_bias(work->mask, work->row_heads[c], work->row_queries[c]) + first +
                   from,
               bytes);
}

/* Adds the biases of the request to the tile of attend_few(). It is a pass of its own, so
 * that no compiler fuses the sums with products: their bits would depend on the form of
 * the tile. */
static void add_to_rows(const struct tile *t, size_t first) {
    const struct panel_work *work = t->work;

    for (size_t c = 0; c < t->work->num_queries; c++) {
        const float *bias =
            mask_bias(work->mask, work->row_heads[c], work->row_queries[c]) + first;
        float *to = t->data + c * t->row_step;
        for (size_t k = t->keys.first; k < t->keys.end; k++)
            to[k] = add_to(to[k], bias[k], t->lowest);
    }
}

/* Likewise to the tile of attend(), some keys at a time. */
static void add_to_keys(const struct tile *t, size_t first) {
    enum { STEP = 64 };
    float biases[STEP][KERNEL_COLUMNS_MAX];
    struct range keys = t->keys;

    for (; keys.first < t->keys.end; keys.first = keys.end) {
        keys.end = size_min(keys.first + STEP, t->keys.end);
        copy_to_keys(t, first, keys, biases[0], KERNEL_COLUMNS_MAX);
        for (size_t k = keys.first; k < keys.end; k++) {
            float *to = t->data + k * t->key_step;
            for (size_t c = 0; c < t->work->num_queries; c++)
                to[c] = add_to(to[c], biases[k - keys.first][c], t->lowest);
        }
    }
}

/* Fills the tile with what follows from positions. */
static void fill_by_position(struct tile *tile, size_t first, bool few, float *line,
                             const struct query_panel *panel) {
    const struct panel_work *work = tile->work;
    const attn_bias kind = tile->model->info.score.bias;

    find_positions(tile, first);
    bool has_line = kind == ATTN_BIAS_ALIBI || kind == ATTN_BIAS_BUCKETS;
    bool from_line = has_line && !few && is_regular(tile);
    if (from_line)
        fill_from_line(tile, line);
    if (kind == ATTN_BIAS_CONTENT)
        fill_content(tile, panel);
    if (few)
        fill_rows(tile);
    else if (!from_line || work->mask->by_pair)
        fill_keys(tile, !from_line);
    if (few || !from_line || work->mask->by_pair)
        pace_add(work->num_queries * (tile->keys.end - tile->keys.first) /
                 (work->mask->by_pair ? 1 : 2));
}

void bias_fill(const struct panel_work *work, size_t first, bool few, bool scores,
               struct query_panel *panel) {
    const struct run *run = work->run;
    const attn_bias kind = run->model->info.score.bias;
    size_t columns = work->kernels->columns, num_rows = work->num_queries;
    /* No row attends to a key after these. */
    size_t key_len = size_min(panel->key_len, KERNEL_CHUNK_KEYS);
    size_t end = first + key_len;
    /* Whole vectors of any set. */
    size_t row =
        (key_len + KERNEL_COLUMNS_MAX - 1) / KERNEL_COLUMNS_MAX * KERNEL_COLUMNS_MAX;
    struct tile tile;

    assert(num_rows > 0);
    tile.work = work;
    tile.model = run->model;
    tile.keys.first = work->keys.first > first ? work->keys.first - first : 0;
    tile.keys.end = size_min(work->keys.end, end) - first;
    /* The kernels begin with a whole word. */
    tile.keys.first -= tile.keys.first % work->kernels->k_step;
    tile.row_step = few ? row : 1;
    tile.key_step = few ? 1 : columns;
    tile.data = run_thread(run, work->thread, run->thread.bias);
    tile.lowest = scores ? -FLT_MAX : -INFINITY;
    bool given = work->mask->bias != NULL,
         by_position = kind != ATTN_BIAS_NONE || work->mask->by_pair;
    if ((!given && !by_position) ||
        tile.keys.first >= tile.keys.end) /* with sinks, rows may have no keys at all */
        return;

    panel->bias = tile.data;
    panel->bias_ld = few ? row : columns;
    panel->far_bias = given && !scores;
    bool copied = given && kind == ATTN_BIAS_NONE; /* nothing is added to it */
    /* The kernels also read unused lanes. */
    if ((kind == ATTN_BIAS_NONE && !copied) || few || num_rows < columns)
        memset(tile.data, 0,
               (few ? num_rows * row : key_len * columns) * sizeof *tile.data);
    if (copied)
        copy_given(&tile, first, few);
    if (by_position)
        fill_by_position(&tile, first, few, tile.data + key_len * columns, panel);
    if (given && !copied)
        (few ? add_to_rows : add_to_keys)(&tile, first);
    if (given)
        pace_add(num_rows * (tile.keys.end - tile.keys.first));
}
