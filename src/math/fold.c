/* SPDX-License-Identifier: Apache-2.0 */
/* fold.c: a product of two matrices in double precision, a strip of columns at a time. */
#include "math/fold.h"

#define STRIP 256 /* columns whose sums are kept at one time */

void fold_product(const float *a, const float *b, const float *addend, size_t rows,
                  size_t inner, size_t columns, float *ret_product) {
    double sums[STRIP];

    for (size_t first = 0; first < columns; first += STRIP) {
        size_t width = columns - first < STRIP ? columns - first : STRIP;

        for (size_t row = 0; row < rows; row++) {
            size_t at = row * columns + first;

            for (size_t c = 0; c < width; c++)
                sums[c] = addend == NULL ? 0 : (double)addend[at + c];
            for (size_t i = 0; i < inner; i++) {
                double factor = (double)a[row * inner + i];
                for (size_t c = 0; c < width; c++)
                    sums[c] += factor * (double)b[i * columns + first + c];
            }
            for (size_t c = 0; c < width; c++)
                ret_product[at + c] = (float)sums[c];
        }
    }
}
