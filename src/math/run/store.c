/* SPDX-License-Identifier: Apache-2.0 */
#include "math/run/store.h"

#include "base/pace.h"
#include "base/size.h"

#include <stdint.h>
#include <string.h>

/* Rows that are in a strip and of one sequence. Keys are counted in the sequence. */
struct part {
    size_t sequence; /* among all */
    size_t row;      /* the first, counted from the first of all sequences */
    struct range keys;
    size_t key_len; /* of the sequence */
};

/* Returns the sequence that a row is of. */
static size_t find_sequence(const struct store_rows *all, size_t row) {
    size_t first = all->sequences[0].first_key, low = 0, high = all->num_sequences;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (all->sequences[middle].first_key - first <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Makes the rows of a sequence from `row` on, but those before rows.end. */
static struct part make_part(const struct store_rows *all, size_t sequence, size_t row,
                             struct range rows) {
    size_t start = all->sequences[sequence].first_key - all->sequences[0].first_key;
    size_t key_len = all->key_lens[sequence];
    const struct range keys = {row - start, size_min(key_len, rows.end - start)};

    pace_add(1);
    return (struct part){sequence, row, keys, key_len};
}

static struct part first_part(const struct store_rows *all, struct range rows) {
    return make_part(all, find_sequence(all, rows.first), rows.first, rows);
}

/* Goes on by some keys; returns false behind the last one. */
static bool go_on(const struct store_rows *all, struct range rows, size_t keys,
                  struct part *part) {
    size_t row = part->row + keys;

    if (row < rows.end)
        *part = make_part(
            all, part->sequence + (part->keys.first + keys == part->key_len), row, rows);
    return row < rows.end;
}

void store_key_panels(const struct store_rows *all, const struct store_place *place,
                      size_t first_column, struct range rows, float *tile) {
    const struct kernels *kernels = all->kernels;
    size_t step = kernels->columns, width = step / kernels->k_step, count;
    size_t words = place->unit / kernels->k_step, head = first_column / place->unit;
    size_t first_word = first_column % place->unit / kernels->k_step;
    struct part part = first_part(all, rows);

    if (kernels->convert_bf16 != NULL)
        kernels->convert_bf16(tile, step, rows.end - rows.first, step, tile, width);
    do {
        size_t panel = part.keys.first / KEY_BLOCK * KEY_BLOCK;
        size_t panel_keys = size_min(part.key_len - panel, KEY_BLOCK);
        size_t first_row = head * place->head_rows + part.row - part.keys.first + panel;
        float *to = place->y + first_row * words + first_word * panel_keys;
        count = size_min(part.keys.end, panel + panel_keys) - part.keys.first;
        kernels->transpose(tile + (part.row - rows.first) * width, width, count, width,
                           to + part.keys.first - panel, panel_keys);
    } while (go_on(all, rows, count, &part));
}

/* Writes a row of values to the words of its pair, whose other row is in another strip.
 * Another thread may be writing that one. */
static void store_half_pair(const struct kernels *kernels, const float *values,
                            size_t width, size_t half, float *to) {
    float words[KERNEL_COLUMNS_MAX];
    uint16_t *halves = (uint16_t *)(void *)to;

    kernels->pack_pairs_bf16(values, width, 1, width, words, width);
    for (size_t c = 0; c < width; c++)
        memcpy(halves + 2 * c + half, words + c, sizeof *halves);
}

void store_value_pairs(const struct store_rows *all, const struct store_place *place,
                       struct range columns, struct range rows, const float *tile) {
    const struct kernels *kernels = all->kernels;
    size_t step = kernels->columns, width = columns.end - columns.first, count;
    struct part part = first_part(all, rows);
    float *y = place->y + columns.first;

    if (place->head_rows > 0)
        y += columns.first / place->unit * (place->head_rows - 1) * place->unit;
    do {
        size_t pair = all->sequences[part.sequence].first_value -
                      all->sequences[0].first_value + part.keys.first / 2;
        bool whole = part.keys.end == part.key_len; /* an odd last key is a pair */
        const float *values = tile + (part.row - rows.first) * step;
        count = part.keys.end - part.keys.first;
        if (part.keys.first % 2 == 1 || (count == 1 && !whole)) {
            count = 1;
            store_half_pair(kernels, values, width, part.keys.first % 2,
                            y + pair * place->ld);
        } else {
            count -= whole ? 0 : count % 2;
            kernels->pack_pairs_bf16(values, step, count, width, y + pair * place->ld,
                                     place->ld);
        }
    } while (go_on(all, rows, count, &part));
}
