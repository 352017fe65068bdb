/* SPDX-License-Identifier: Apache-2.0 */
#include "math/fold.h"

void fold(const float *a, const float *b, const float *addend, size_t rows, size_t inner,
          size_t columns, double *sums, float *ret_product) {
    for (size_t row = 0; row < rows; row++) {
        for (size_t column = 0; column < columns; column++)
            sums[column] = addend == NULL ? 0 : (double)addend[row * columns + column];
        for (size_t i = 0; i < inner; i++) {
            double factor = (double)a[row * inner + i];
            for (size_t column = 0; column < columns; column++)
                sums[column] += factor * (double)b[i * columns + column];
        }
        for (size_t column = 0; column < columns; column++)
            ret_product[row * columns + column] = (float)sums[column];
    }
}
