/* SPDX-License-Identifier: Apache-2.0 */
/* entering.c: a norm leaves rows whose mean square is 1 once its weight and bias are
 * undone; hidden states are much smaller or larger. */
#include "math/rows/entering.h"

#include "base/pace.h"
#include "base/size.h"

#include <math.h>

#define ROWS_MIN     4
#define ROWS_MAX     256  /* that are compared, evenly spaced: it bounds the time */
#define COLUMNS      512  /* of the norm that are undone at a time */
#define LANES        16   /* of sums, so that a compiler can make vectors of them */
#define SMALL_WEIGHT 1e-3 /* of the largest: undoing smaller ones would amplify noise */

/* A part of a norm, undone: z = (x - shift) * factor, where columns left out have 0. */
struct undone {
    float shift[COLUMNS], factor[COLUMNS];
    size_t count; /* a multiple of LANES, but for the last part */
};

/* Of a row, over the columns that were not left out. */
struct moments {
    float sum, square;
};

/* Returns the largest magnitude of the weights. */
static float find_largest(const float *weights, size_t count) {
    float largest = 0;

    for (size_t i = 0; i < count; i++)
        largest = fabsf(weights[i]) > largest ? fabsf(weights[i]) : largest;
    return largest;
}

/* Undoes columns from `first` on. Returns how many of them are not left out. */
static size_t undo_norm(const struct norm *norm, size_t first, float smallest,
                        struct undone *ret_undone) {
    size_t kept = 0;

    for (size_t i = 0; i < ret_undone->count; i++) {
        float weight = norm->weight[first + i];
        bool keeps = weight != 0 && fabsf(weight) >= smallest;
        ret_undone->factor[i] = keeps ? 1 / weight : 0;
        ret_undone->shift[i] = norm->bias != NULL ? norm->bias[first + i] : 0;
        kept += keeps;
    }
    return kept;
}

static void add_moments(const struct undone *undone, const float *row,
                        struct moments *moments) {
    float sums[LANES] = {0}, squares[LANES] = {0};
    size_t whole = undone->count / LANES * LANES;

    pace_add(undone->count);
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            float z = (row[i + j] - undone->shift[i + j]) * undone->factor[i + j];
            sums[j] += z;
            squares[j] += z * z;
        }
    }
    for (size_t i = whole; i < undone->count; i++) {
        float z = (row[i] - undone->shift[i]) * undone->factor[i];
        sums[0] += z;
        squares[0] += z * z;
    }
    for (size_t j = 0; j < LANES; j++) {
        moments->sum += sums[j];
        moments->square += squares[j];
    }
}

/* Adds up some rows, `step` rows apart. Returns over how many columns. */
static size_t sum_rows(const struct norm *norm, const float *rows, size_t step,
                       size_t count, struct moments *moments) {
    float smallest = (float)SMALL_WEIGHT * find_largest(norm->weight, norm->size);
    size_t kept = 0;
    struct undone undone;

    for (size_t first = 0; first < norm->size; first += COLUMNS) {
        undone.count = size_min(norm->size - first, COLUMNS);
        kept += undo_norm(norm, first, smallest, &undone);
        for (size_t i = 0; i < count; i++)
            add_moments(&undone, rows + i * step * norm->size + first, &moments[i]);
    }
    return kept;
}

enum entering entering_find(const struct norm *norm, const float *rows, size_t count) {
    struct moments moments[ROWS_MAX] = {{0}};
    size_t step = (count + ROWS_MAX - 1) / ROWS_MAX;
    size_t low = 0, high = 0, normed = 0, filled = 0, centred = 0;

    if (count < ROWS_MIN)
        return ENTERING_UNCERTAIN;
    count = (count + step - 1) / step;
    float columns = (float)sum_rows(norm, rows, step, count, moments);
    for (size_t i = 0; i < count; i++) {
        float square = moments[i].square / columns;
        low += square < 0.5F;
        high += square > 2;
        normed += square <= 1.01F;
        filled += square > 0.6F;
        centred += fabsf(moments[i].sum / columns) <= 0.02F;
    }

    /* A median is above a number when half of the rows are. */
    if (low * 2 >= count || high * 2 >= count)
        return ENTERING_BEFORE;
    bool is_normed = normed * 20 >= count * 19 && filled * 2 >= count;
    bool is_centred = !norm->centred || centred * 20 >= count * 19;
    return is_normed && is_centred ? ENTERING_BEHIND : ENTERING_UNCERTAIN;
}
