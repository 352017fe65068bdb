/* SPDX-License-Identifier: Apache-2.0 */
/* entering.c: a norm leaves rows whose mean square is 1 once its weight and bias are
 * undone; hidden states are much smaller or larger. Columns that cannot be undone have
 * what the others leave of the squares, and with the mean of 0 of the sum. */
#include "math/rows/entering.h"

#include "base/pace.h"

#include <math.h>
#include <string.h>

#define ROWS_MIN     4
#define ROWS_MAX     32    /* that are compared, evenly spaced: it bounds the time */
#define SMALL_WEIGHT 1e-3F /* of the largest */
#define LANES        16

typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

void entering_invert(const float *weight, size_t count, float *ret_inverse) {
    float largest = 0;

    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(weight[i]));
    for (size_t i = 0; i < count; i++) {
        bool keeps = weight[i] != 0 && fabsf(weight[i]) >= SMALL_WEIGHT * largest;
        ret_inverse[i] = keeps ? 1 / weight[i] : 0;
    }
}

/* Returns how many columns are not left out. */
static float count_kept(const float *inverse, size_t size) {
    int kept = 0;

    for (size_t i = 0; i < size; i++)
        kept += inverse[i] != 0;
    return (float)kept;
}

/* Returns the sum of z = (x - bias) * inverse over a row, and that of its squares. */
static float sum_row(const struct norm *norm, const float *inverse, const float *row,
                     float *ret_squares) {
    lanes sums = {0}, squares = {0}, x, shift, factor;
    float sum = 0, square = 0;
    size_t i = 0;

    for (; i + LANES <= norm->size; i += LANES) {
        memcpy(&x, row + i, sizeof x);
        memcpy(&factor, inverse + i, sizeof factor);
        if (norm->bias != NULL) {
            memcpy(&shift, norm->bias + i, sizeof shift);
            x -= shift;
        }
        x *= factor;
        sums += x;
        squares += x * x;
    }
    for (; i < norm->size; i++) {
        float z = (row[i] - (norm->bias != NULL ? norm->bias[i] : 0)) * inverse[i];
        sum += z;
        square += z * z;
    }
    for (size_t j = 0; j < LANES; j++) {
        sum += sums[j];
        square += squares[j];
    }
    *ret_squares = square;
    return sum;
}

/* Whether z of a row, of which these are sums over `kept` of `size` columns, have too
 * much of a mean for a layer norm. By Cauchy and Schwarz, the other columns add up to at
 * most the root of their number times their squares. */
static bool is_off(float sum, float squares, float kept, float size) {
    float others = (size - kept) * fmaxf(1.01F * size - squares, 0);

    return !(fabsf(sum) <= 0.02F * size + sqrtf(others));
}

bool entering_is(enum entering where, const struct norm *norm, const float *inverse,
                 const float *rows, size_t count) {
    size_t step = (count + ROWS_MAX - 1) / ROWS_MAX;
    size_t large = 0, small = 0, off = 0, not_low = 0, not_high = 0;

    if (count < ROWS_MIN)
        return false;
    count = (count + step - 1) / step;
    float kept = count_kept(inverse, norm->size), size = (float)norm->size;
    bool possible = true;
    for (size_t i = 0; i < count && possible; i++) {
        float square, sum = sum_row(norm, inverse, rows + i * step * norm->size, &square);
        large += !(square <= 1.01F * size);
        off += norm->centred && is_off(sum, square, kept, size);
        square /= kept;
        small += !(square > 0.6F);
        not_low += !(square < 0.5F);
        not_high += !(square > 2);

        /* 95 % of the rows; half of them tell on which side the median is. */
        possible = where == ENTERING_BEHIND
                       ? large * 20 <= count && off * 20 <= count && small * 2 <= count
                       : not_low * 2 <= count || not_high * 2 <= count;
        pace_add(norm->size);
    }
    return possible;
}
