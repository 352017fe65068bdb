/* SPDX-License-Identifier: Apache-2.0 */
/* latent.c: folds the head that all key heads share into the weights of each: rows of the
 * identity matrix copy it from the end of a latent row. The attention is then an ordinary
 * one, of as many key heads as query heads. */
#include "weights/layer/latent.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Moves heads of `rows` rows of `columns` numbers apart, in place: `before` rows of 0
 * come in front of each head, and `after` numbers of 0 behind each row. */
static void spread_rows(float *weight, size_t num_heads, size_t rows, size_t columns,
                        size_t before, size_t after) {
    size_t to_columns = columns + after;

    /* no row moves to where one lies that has yet to be moved, from the last one on */
    for (size_t h = num_heads; h-- > 0;) {
        float *head = weight + h * (before + rows) * to_columns;
        for (size_t row = rows; row-- > 0;) {
            float *to = head + (before + row) * to_columns;
            memmove(to, weight + (h * rows + row) * columns, columns * sizeof *to);
            memset(to + columns, 0, after * sizeof *to);
        }
        memset(head, 0, before * to_columns * sizeof *head);
    }
}

/* Moves the last `count` rows of each head [size, columns] before the others. */
static attn_status move_last_rows(float *weight, size_t num_heads, size_t size,
                                  size_t columns, size_t count) {
    size_t moved = count * columns, others = (size - count) * columns;
    float *rows = calloc(moved + 1, sizeof *rows);

    if (rows == NULL)
        return ATTN_E_NOMEM;
    for (size_t h = 0; h < num_heads; h++) {
        float *head = weight + h * size * columns;
        memcpy(rows, head + others, moved * sizeof *rows);
        memmove(head + moved, head, others * sizeof *rows);
        memcpy(head, rows, moved * sizeof *rows);
    }
    free(rows);
    return ATTN_OK;
}

attn_status latent_lay_out(attn_model *model, attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    size_t heads = info->num_heads, size = info->width.score,
           shared = info->latent.shared;
    size_t columns = info->latent.key, plain = columns - shared;
    size_t query_size = info->latent.query > 0 ? info->latent.query : info->width.query;

    spread_rows(model_weight(model, ATTN_VALUE), heads, info->width.head, plain, 0,
                shared);
    spread_rows(model_weight(model, ATTN_KEY), heads, size - shared, plain, shared,
                shared);
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < shared; i++)
            model_weight(model, ATTN_KEY)[(h * size + i) * columns + plain + i] = 1;
    }
    if (move_last_rows(model_weight(model, ATTN_QUERY), heads, size, query_size,
                       shared) != ATTN_OK)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to move rows");
    return ATTN_OK;
}
