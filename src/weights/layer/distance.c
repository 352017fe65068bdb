/* SPDX-License-Identifier: Apache-2.0 */
/* distance.c: slopes and tables of biases by distance. */
#include "weights/layer/distance.h"

#include "base/dtype.h"
#include "base/error.h"
#include "math/blas.h"
#include "math/rows/norm.h"
#include "weights/layer/gather.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void distance_fill_slopes(attn_bias bias, size_t num_heads, float *ret_slopes) {
    size_t power = 1;

    while (2 * power <= num_heads)
        power *= 2;
    /* Heads above the last power of two take every second slope of twice as many. */
    for (size_t h = 0; h < num_heads; h++) {
        double step = h < power ? (double)(h + 1) / (double)power
                                : (double)(2 * (h - power) + 1) / (double)(2 * power);
        double slope = exp2(-8 * step);
        ret_slopes[h] = bias == ATTN_BIAS_ALIBI_ROUNDED ? dtype_round_bf16((float)slope)
                                                        : (float)slope;
    }
}

size_t distance_find_bucket(const struct layer_bias *bias, ptrdiff_t distance) {
    size_t count = bias->num_buckets / (bias->both_sides ? 2 : 1), first = 0;
    size_t exact = count / 2, before = distance < 0 ? (size_t)-distance : 0;

    if (bias->both_sides && distance > 0) {
        before = (size_t)distance;
        first = count;
    }
    if (before < exact)
        return first + before;
    double share = log((double)before / (double)exact) /
                   log((double)bias->max_distance / (double)exact);
    size_t bucket = exact + (size_t)(share * (double)(count - exact));
    return first + (bucket < count ? bucket : count - 1);
}

attn_status distance_read_biases(const struct layer_bias *bias, size_t num_heads,
                                 float *ret_biases, attn_error *ret_error) {
    size_t farthest = bias->max_distance, width = 2 * farthest + 1;
    const struct safetensors_tensor *stored = bias->table;
    float *table = calloc(bias->num_buckets, num_heads * sizeof *table);
    if (table == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read '%.80s'",
                         stored->name);

    attn_status status =
        safetensors_read(stored, 0, bias->num_buckets * num_heads, table, ret_error);
    for (size_t i = 0; status == ATTN_OK && i < width; i++) {
        size_t bucket = distance_find_bucket(bias, (ptrdiff_t)i - (ptrdiff_t)farthest);
        for (size_t h = 0; h < num_heads; h++)
            ret_biases[h * width + i] = table[bucket * num_heads + h];
    }
    free(table);
    return status;
}

size_t distance_find_row(const struct layer_bias *bias, ptrdiff_t distance) {
    size_t away = distance < 0 ? (size_t)-distance : (size_t)distance;
    size_t exact = bias->num_buckets / 2, last = bias->table_rows - 1;

    if (exact > 0 && away > exact)
        away =
            exact + (size_t)ceil(log((double)away / (double)exact) /
                                 log((double)(bias->max_distance - 1) / (double)exact) *
                                 (double)(exact - 1));
    if ((distance < 0) != bias->descending)
        return away < bias->own_row ? bias->own_row - away : 0;
    return away < last - bias->own_row ? bias->own_row + away : last;
}

/* Reads the table of content, and norms its rows. */
static attn_status read_content_table(const struct layer_bias *bias, float *ret_rows,
                                      attn_error *ret_error) {
    size_t columns = bias->table_columns;
    float *weight = calloc(2, columns * sizeof *weight), *shift = NULL;
    attn_status status = safetensors_read_all(bias->table, ret_rows, ret_error);

    if (weight == NULL)
        status = error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read '%.80s'",
                           bias->table->name);
    if (status == ATTN_OK && bias->norm.weight != NULL) {
        shift = weight + columns;
        status = safetensors_read_all(bias->norm.weight, weight, ret_error);
        if (status == ATTN_OK)
            status = safetensors_read_all(bias->norm.bias, shift, ret_error);
        const struct norm norm = {true, bias->norm_eps, weight, shift, columns};
        for (size_t r = 0; status == ATTN_OK && r < bias->table_rows; r++)
            norm_row(&norm, ret_rows + r * columns, ret_rows + r * columns);
    }
    free(weight);
    return status;
}

/* Projects the rows of a table to those of all heads, [table_rows, out]. */
static attn_status project_table(const struct layer_bias *bias, const float *rows,
                                 const struct layer_linear *linear,
                                 const struct model_array *to, attn_error *ret_error) {
    size_t in = bias->table_columns, out = to->columns;
    float *weight = calloc(out, (in + 1) * sizeof *weight);
    if (weight == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read '%.80s'",
                         linear->weight->name);

    float *shift = weight + out * in;
    attn_status status = gather_linear(linear, weight, shift, ret_error);
    if (status == ATTN_OK) {
        blas_multiply_transposed(to->rows, out, in, (struct blas_matrix){rows, in},
                                 (struct blas_matrix){weight, in}, 0.0F, to->numbers,
                                 out);
        for (size_t i = 0; i < to->rows * out; i++)
            to->numbers[i] += shift[i % out];
    }
    free(weight);
    return status;
}

attn_status distance_read_content(const struct layer *layer, attn_model *model,
                                  attn_error *ret_error) {
    const struct layer_bias *bias = &layer->bias;
    const struct model_array *distances = &model->arrays[MODEL_DISTANCE_BIAS];
    size_t columns = bias->table_columns, farthest = layer->info.score.bias_distance;
    float *rows = calloc(bias->table_rows, columns * sizeof *rows);
    if (rows == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read '%.80s'",
                         bias->table->name);

    for (size_t i = 0; i < distances->columns; i++)
        distances->numbers[i] =
            (float)distance_find_row(bias, (ptrdiff_t)i - (ptrdiff_t)farthest);
    attn_status status = read_content_table(bias, rows, ret_error);
    for (size_t i = 0; i < 2 && status == ATTN_OK; i++) {
        const struct layer_linear *linear = &layer->linears[LAYER_POSITION_KEY + i];
        const struct model_array *to = &model->arrays[MODEL_POSITION_KEYS + i];
        if (to->rows > 0 && linear->weight != NULL)
            status = project_table(bias, rows, linear, to, ret_error);
        for (size_t at = 0; linear->weight == NULL && at < to->rows * to->columns;
             at += columns) /* each head has the same */
            memcpy(to->numbers + at, rows + at / to->columns * columns,
                   columns * sizeof *rows);
    }
    free(rows);
    return status;
}
