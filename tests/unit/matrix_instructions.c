/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_instructions.c: see the header. It is compiled for the CPU, and with
 * tests/model; INSTRUCTIONS is the name of the result. */
#include "matrix_instructions.h"

#include <immintrin.h>

#include "math/kernels/matrix/tiles.inc"

#include <string.h>

static void multiply(int rows, int columns, int depth, const union vector_words *a,
                     const union vector_words *b, union vector_words *c) {
    struct matrix_shapes shapes = {.palette = 1};

    for (int t = 0; t < 3; t++) {
        shapes.rows[t] = (uint8_t)(t == 2 ? depth : rows);
        shapes.row_bytes[t] = (uint16_t)(4 * (t == 1 ? depth : columns));
    }
    MATRIX_SHAPE(&shapes);
    MATRIX_FENCE();
    MATRIX_LOAD(0, c, sizeof *c);
    MATRIX_LOAD_ONCE(1, a, sizeof *a);
    MATRIX_LOAD(2, b, sizeof *b);
    MATRIX_MULTIPLY(0, 1, 2);
    MATRIX_STORE(0, c, sizeof *c);
    MATRIX_ZERO(1);
    MATRIX_STORE(1, c + rows, sizeof *c);
    MATRIX_FENCE();
    MATRIX_RELEASE();
}

static void compute(const union vector_words *x_words, const union vector_words *y_words,
                    const union vector_words *z_words, struct vector_results *results) {
    __m512bh x_pairs, y_pairs, pairs;
    __m512 x, y, z, result;

    memcpy(&x, x_words, sizeof x);
    memcpy(&y, y_words, sizeof y);
    memcpy(&z, z_words, sizeof z);
    memcpy(&x_pairs, x_words, sizeof x);
    memcpy(&y_pairs, y_words, sizeof y);
    result = _mm512_fmadd_ps(x, y, z);
    memcpy(&results->sum, &result, sizeof result);
    result = _mm512_dpbf16_ps(z, x_pairs, y_pairs);
    memcpy(&results->product, &result, sizeof result);
    result = _mm512_max_ps(x, y);
    memcpy(&results->larger, &result, sizeof result);
    result = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    memcpy(&results->rounded, &result, sizeof result);
    result = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    memcpy(&results->rest, &result, sizeof result);
    result = _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(y, z, _CMP_NLT_UQ), x, y);
    memcpy(&results->scaled, &result, sizeof result);
    pairs = _mm512_cvtne2ps_pbh(y, x);
    memcpy(&results->pairs, &pairs, sizeof pairs);
}

const struct instructions INSTRUCTIONS = {multiply, compute};
