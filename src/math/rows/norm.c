/* SPDX-License-Identifier: Apache-2.0 */
/* norm.c: norms, with sums in lanes that a compiler can make vectors of. They are sums of
 * float64, in which no square overflows. */
#include "math/rows/norm.h"

#include <math.h>

#define LANES 16

/* Returns the sum of x, or of (x - mean)^2. */
static double sum_numbers(const float *x, size_t count, const float *mean) {
    double lanes[LANES] = {0}, total = 0;
    size_t i = 0;

    for (; i + LANES <= count; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            double number = (double)(mean != NULL ? x[i + j] - *mean : x[i + j]);
            lanes[j] += mean != NULL ? number * number : number;
        }
    }
    for (size_t j = 0; i < count; i++, j++) {
        double number = (double)(mean != NULL ? x[i] - *mean : x[i]);
        lanes[j] += mean != NULL ? number * number : number;
    }
    for (size_t j = 0; j < LANES; j++)
        total += lanes[j];
    return total;
}

struct norm_scale norm_find(const struct norm *norm, const float *row, size_t parts,
                            size_t ld) {
    struct norm_scale by = {0};
    size_t count = norm->size / parts;
    double sum = 0, square = 0;

    for (size_t i = 0; norm->centred && i < parts; i++)
        sum += sum_numbers(row + i * ld, count, NULL);
    by.mean = (float)(sum / (double)norm->size);
    for (size_t i = 0; i < parts; i++)
        square += sum_numbers(row + i * ld, count, &by.mean);
    by.scale = (float)(1 / sqrt(square / (double)norm->size + norm->eps));
    return by;
}

void norm_apply(const struct norm *norm, struct norm_scale by, size_t first, size_t count,
                const float *x, float *y) {
    const float *weight = norm->weight != NULL ? norm->weight + first : NULL;

    if (weight == NULL) {
        for (size_t i = 0; i < count; i++)
            y[i] = (x[i] - by.mean) * by.scale;
        return;
    }
    for (size_t i = 0; i < count; i++)
        y[i] = (x[i] - by.mean) * by.scale * weight[i];
    for (size_t i = 0; norm->bias != NULL && i < count; i++)
        y[i] += norm->bias[first + i];
}

void norm_row(const struct norm *norm, const float *x, float *y) {
    norm_apply(norm, norm_find(norm, x, 1, 0), 0, norm->size, x, y);
}

void norm_clip(float clip, size_t count, float *x) {
    for (size_t i = 0; i < count; i++) {
        float number = x[i] > clip ? clip : x[i];
        x[i] = (number < -clip ? -clip : number) + (x[i] - x[i]);
    }
}
