/* SPDX-License-Identifier: Apache-2.0 */
/* ref_rows.c: linear maps, norms and rotations, as they are defined. */
#include "ref_rows.h"

#include <math.h>
#include <stdlib.h>

void ref_linear(struct ref_rounding *rounding, const float *weight, const float *bias,
                size_t out, size_t in, const double *x, double *y) {
    for (size_t o = 0; o < out; o++) {
        double sum = bias != NULL ? (double)bias[o] : 0.0, magnitude = fabs(sum);
        for (size_t i = 0; i < in; i++) {
            double product = ref_factor(rounding->weights, (double)weight[o * in + i]) *
                             ref_factor(rounding->rows, x[i]);
            sum += product;
            magnitude += fabs(product);
        }
        y[o] = ref_nudge(rounding, sum, magnitude);
    }
}

void ref_norm(attn_norm norm, double eps, const float *weight, const float *bias,
              size_t size, double *numbers) {
    double mean = 0, square = 0;

    if (norm == ATTN_NORM_NONE)
        return;
    for (size_t i = 0; norm == ATTN_NORM_LAYER && i < size; i++)
        mean += numbers[i] / (double)size;
    for (size_t i = 0; i < size; i++)
        square += (numbers[i] - mean) * (numbers[i] - mean) / (double)size;
    for (size_t i = 0; i < size; i++) {
        numbers[i] = (numbers[i] - mean) / sqrt(square + eps) *
                     (weight != NULL ? (double)weight[i] : 1);
        if (bias != NULL)
            numbers[i] += (double)bias[i];
    }
}

void ref_clip(double clip, size_t size, double *numbers) {
    for (size_t i = 0; clip > 0 && i < size; i++)
        numbers[i] = fmin(fmax(numbers[i], -clip), clip);
}

/* Returns frequency a of a sequence of `length` positions. */
static double ref_find_frequency(const attn_model *model, size_t a, size_t length) {
    const struct model_rotation *rotation = &model->rotation;
    double size = (double)model->info.rotation.size;

    if (rotation->max_length == 0 || length <= rotation->max_length)
        return rotation->frequencies[a];
    if (rotation->long_frequencies != NULL)
        return rotation->long_frequencies[a];
    double stretch = rotation->factor * (double)length / (double)rotation->max_length -
                     (rotation->factor - 1);
    return pow(rotation->base * pow(stretch, size / (size - 2)), -2 * (double)a / size);
}

void ref_rotate(const attn_model *model, const size_t position[ATTN_AXES], size_t length,
                bool neighbours, double *head) {
    const unsigned char *axis_of = model->rotation.axis_of;
    size_t half = model->info.rotation.size / 2;
    size_t step = neighbours ? 2 : 1, apart = neighbours ? 1 : half;

    for (size_t a = 0; a < half; a++) {
        size_t axis = axis_of != NULL ? axis_of[a] : 0;
        double angle = (double)position[axis] * ref_find_frequency(model, a, length);
        double cosine = model->rotation.magnitude * cos(angle);
        double sine = model->rotation.magnitude * sin(angle);
        double *first = head + step * a, *second = first + apart, x = *first;
        *first = x * cosine - *second * sine;
        *second = *second * cosine + x * sine;
    }
}

struct ref_latent ref_find_latent(const attn_model *model, bool keys) {
    if (keys)
        return (struct ref_latent){model_weight(model, ATTN_LATENT_KEY),
                                   model_bias(model, ATTN_LATENT_KEY),
                                   model->arrays[MODEL_LATENT_KEY_NORM].numbers,
                                   model->info.latent.key, model->info.latent.shared};
    return (struct ref_latent){
        model_weight(model, ATTN_LATENT_QUERY), model_bias(model, ATTN_LATENT_QUERY),
        model->arrays[MODEL_LATENT_QUERY_NORM].numbers, model->info.latent.query, 0};
}

double *ref_project(const attn_model *model, struct ref_rounding *rounding,
                    attn_linear which, size_t out, size_t in, double clip,
                    struct ref_latent latent, const float *x, size_t rows, bool norm) {
    const attn_model_info *info = &model->info;
    bool given = info->projection.given;
    double *y = calloc(rows * out, sizeof *y), *row = calloc(in, sizeof *row);
    double *latent_row = calloc(latent.size + 1, sizeof *latent_row);

    for (size_t r = 0;
         y != NULL && row != NULL && latent_row != NULL && x != NULL && r < rows; r++) {
        for (size_t i = 0; i < in; i++)
            (given ? y + r * out : row)[i] = (double)x[r * in + i];
        if (given)
            continue;
        if (norm)
            ref_norm(info->pre_norm.kind, info->pre_norm.eps,
                     model->arrays[MODEL_PRE_NORM].numbers,
                     model->arrays[MODEL_PRE_NORM_BIAS].numbers, in, row);
        for (size_t i = 0; norm && i < in; i++)
            row[i] = ref_nudge(rounding, row[i], fabs(row[i]));
        if (latent.size > 0) {
            ref_linear(rounding, latent.weight, latent.bias, latent.size, in, row,
                       latent_row);
            ref_norm(ATTN_NORM_RMS, info->latent.eps, latent.norm, NULL,
                     latent.size - latent.shared, latent_row);
        }
        ref_linear(rounding, model_weight(model, which), model_bias(model, which), out,
                   latent.size > 0 ? latent.size : in, latent.size > 0 ? latent_row : row,
                   y + r * out);
        ref_clip(clip, out, y + r * out);
    }
    if (row == NULL || latent_row == NULL) {
        free(y);
        y = NULL;
    }
    free(row);
    free(latent_row);
    return y;
}
