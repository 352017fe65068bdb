/* SPDX-License-Identifier: Apache-2.0 */
/* immintrin.h: the instructions of x86-64 that sets of kernels need, in plain C under the
 * names of Intel's intrinsics. With this folder first among those of headers, a set is
 * compiled for any CPU: a model of what the set does where the CPU has it.
 *
 * All results have the bits of the CPU's, except that a NaN may be another one. The
 * products of bfloat16 do not read the modes of the CPU: they round to nearest, and take
 * denormal numbers for 0. Tests compare both where the CPU has them. */
#ifndef ATTND_TESTS_MODEL_IMMINTRIN_H
#define ATTND_TESTS_MODEL_IMMINTRIN_H

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define _MM_FROUND_TO_NEAREST_INT 0
#define _MM_FROUND_TO_NEG_INF     1
#define _MM_FROUND_NO_EXC         8
#define _CMP_NLT_UQ               21

enum { MODEL_LANES = 16, MODEL_TILES = 8 };

#define MODEL       static inline __attribute__((always_inline, unused))
#define MODEL_LARGE static __attribute__((noinline, unused)) /* it compiles in seconds */

typedef float __m256 __attribute__((vector_size(32)));
typedef float __m512 __attribute__((vector_size(64)));
typedef uint16_t __m128i __attribute__((vector_size(16)));
typedef int32_t __m256i __attribute__((vector_size(32)));
typedef int32_t __m512i __attribute__((vector_size(64)));
typedef uint32_t __m512bh __attribute__((vector_size(64))); /* pairs, as words */

/* --- numbers --- */

MODEL uint32_t model_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

MODEL float model_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

MODEL float model_flush(float x) {
    return fabsf(x) < 0x1p-126F ? copysignf(0.0F, x) : x;
}

/* Returns factor 0 or 1 of a pair. */
MODEL float model_factor(uint32_t pair, int n) {
    return model_flush(model_float(n == 0 ? pair << 16 : pair & 0xffff0000U));
}

/* Returns x * y + sum, of factors of bfloat16. A result is denormal if it were so when
 * it was rounded to 24 bits with any exponent: a little below 2^-126 it is not. */
MODEL float model_multiply_add(float x, float y, float sum) {
    double exact = (double)x * (double)y + (double)sum;
    float rounded = fmaf(x, y, sum);
    return fabs(exact) < 0x1p-126 - 0x1p-151 ? copysignf(0.0F, rounded) : rounded;
}

/* Returns whether x is a number from which flushing may tell: up to 2^-126, but not 0. */
MODEL uint32_t model_is_tiny(float x) {
    return (model_bits(x) << 1) - 1 < 0x01000000;
}

/* Returns the upper half of x, rounded to the nearest. */
MODEL uint32_t model_round(float x) {
    uint32_t bits = model_bits(model_flush(x));
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return isnan(x) ? bits >> 16 | 0x40 : rounded;
}

MODEL float model_scale(float x, float n) {
    double exponent = floor((double)n);
    if (isinf(n) && isnan(x))
        return n > 0 ? INFINITY : 0.0F;
    if (isnan(n) || isinf(n))
        return n < 0 ? x * 0.0F : x * n;
    return (float)ldexp((double)x, (int)fmax(-1000, fmin(exponent, 1000)));
}

/* --- vectors --- */

/* Defines a function of lanes a[i], b[i] and c[i]; `type` is that of vectors, and the
 * result replaces a. Loops over arrays are what compilers make vectors of. */
#define MODEL_LANES_OF(kind, type, name, result)                                         \
    kind type name(type x, type y, type z) {                                             \
        enum { LANES_OF_##name = sizeof(type) / 4 };                                     \
        float a[LANES_OF_##name], b[LANES_OF_##name], c[LANES_OF_##name];                \
        memcpy(a, &x, sizeof a);                                                         \
        memcpy(b, &y, sizeof b);                                                         \
        memcpy(c, &z, sizeof c);                                                         \
        for (int i = 0; i < LANES_OF_##name; i++)                                        \
            a[i] = result;                                                               \
        memcpy(&x, a, sizeof a);                                                         \
        return x;                                                                        \
    }

MODEL_LANES_OF(MODEL, __m256, _mm256_fmadd_ps, fmaf(a[i], b[i], c[i]))
MODEL_LANES_OF(MODEL, __m512, _mm512_fmadd_ps, fmaf(a[i], b[i], c[i]))
MODEL_LANES_OF(MODEL, __m256, model_larger_256, a[i] > b[i] ? a[i] : b[i])
MODEL_LANES_OF(MODEL, __m512, model_larger, a[i] > b[i] ? a[i] : b[i])
MODEL_LANES_OF(MODEL, __m512, model_nearest, nearbyintf(a[i]))
MODEL_LANES_OF(MODEL, __m512, model_floor, floorf(a[i]))
#define _mm256_max_ps(x, y) model_larger_256(x, y, x)
#define _mm512_max_ps(x, y) model_larger(x, y, x)

MODEL __m256 _mm256_and_ps(__m256 x, __m256 y) {
    return (__m256)((__m256i)x & (__m256i)y);
}

/* Compares x and y; `how` is _CMP_NLT_UQ, x not less than y. */
MODEL __m256 _mm256_cmp_ps(__m256 x, __m256 y, int how) {
    (void)how;
    return (__m256) ~(x < y);
}

MODEL __m256i _mm256_cvtepu16_epi32(__m128i x) {
    return __builtin_convertvector(x, __m256i);
}

MODEL __m512i _mm512_cvtepu16_epi32(__m256i x) {
    typedef uint16_t words_of_16 __attribute__((vector_size(32)));
    return __builtin_convertvector((words_of_16)x, __m512i);
}

MODEL __m512i _mm512_set1_epi32(int32_t word) {
    return word - (__m512i){0};
}

/* Rounds to integers; `how` is _MM_FROUND_TO_NEAREST_INT. */
MODEL __m512 _mm512_roundscale_ps(__m512 x, int how) {
    (void)how;
    return model_nearest(x, x, x);
}

/* Returns x - y, rounded down, for y <= x < y + 1. */
MODEL float model_subtract(float x, float y) {
    float above = x - y, sum = above + y;
    float rest = (x - sum) - (y - (sum - above)); /* Knuth: 2Sum */
    float rounded = model_float(model_bits(above) - (rest < 0 ? 1 : 0));
    return rounded == 0.0F ? -0.0F : rounded;
}

MODEL_LANES_OF(MODEL_LARGE, __m512, model_above,
               isinf(a[i]) ? 0.0F : model_subtract(a[i], b[i]))

/* Returns what is above the next lower integers; `how` is _MM_FROUND_TO_NEG_INF, and the
 * result is rounded like that too. */
MODEL __m512 _mm512_reduce_ps(__m512 x, int how) {
    (void)how;
    return model_above(x, model_floor(x, x, x), x);
}

/* Returns a number that is 0 when x and y have no bit in common. */
MODEL uint32_t _mm512_test_epi32_mask(__m512i x, __m512i y) {
    uint32_t lanes[MODEL_LANES], any = 0;
    x &= y;
    memcpy(lanes, &x, sizeof lanes);
    for (int i = 0; i < MODEL_LANES; i++)
        any |= lanes[i];
    return any;
}

MODEL_LANES_OF(MODEL, __m512, model_not_less, model_float(a[i] < b[i] ? 0 : ~0U))

/* Returns the lanes, with all bits or none, in which x is not less than y; `how` is
 * _CMP_NLT_UQ. */
#define _mm512_cmp_ps_mask(x, y, how) ((void)(how), model_not_less(x, y, x))

/* Returns x * 2^n, n rounded down, in some lanes, which have all bits; 0 in the
 * others. */
MODEL_LARGE __m512 _mm512_maskz_scalef_ps(__m512 where, __m512 x, __m512 n) {
    float kept[MODEL_LANES], a[MODEL_LANES], b[MODEL_LANES], scaled[MODEL_LANES];
    uint32_t rare = 0;

    memcpy(kept, &where, sizeof kept);
    memcpy(a, &x, sizeof a);
    memcpy(b, &n, sizeof b);
    for (int i = 0; i < MODEL_LANES; i++) {
        uint32_t keep = model_bits(kept[i]);
        float power = model_float(model_bits(b[i]) & keep);
        rare |= power >= -126.0F && power < 128.0F ? 0 : 1; /* 2^n is not normal */
        int32_t exponent = (int32_t)floorf(fmaxf(-126.0F, fminf(power, 127.0F)));
        float factor = model_float((uint32_t)(exponent + 127) << 23);
        scaled[i] = model_float(model_bits(a[i] * factor) & keep);
    }
    for (int i = 0; rare != 0 && i < MODEL_LANES; i++)
        scaled[i] = model_bits(kept[i]) != 0 ? model_scale(a[i], b[i]) : 0.0F;
    memcpy(&x, scaled, sizeof x);
    return x;
}

/* --- AVX512-BF16 --- */

MODEL_LARGE __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
    float numbers[2 * MODEL_LANES];
    uint16_t halves_of_pairs[2 * MODEL_LANES];
    __m512bh pairs;

    memcpy(numbers, &low, sizeof low);
    memcpy(numbers + MODEL_LANES, &high, sizeof high);
    for (int i = 0; i < 2 * MODEL_LANES; i++)
        halves_of_pairs[i] = (uint16_t)model_round(numbers[i]);
    memcpy(&pairs, halves_of_pairs, sizeof pairs);
    return pairs;
}

MODEL_LARGE __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh x, __m512bh y) {
    float before[MODEL_LANES], sums[MODEL_LANES];
    uint32_t a[MODEL_LANES], b[MODEL_LANES], rare = 0;

    memcpy(before, &sum, sizeof before);
    memcpy(a, &x, sizeof a);
    memcpy(b, &y, sizeof b);
    for (int i = 0; i < MODEL_LANES; i++) {
        float first[2] = {model_float(a[i] << 16), model_float(b[i] << 16)};
        float second[2] = {model_float(a[i] & 0xffff0000U),
                           model_float(b[i] & 0xffff0000U)};
        float one = fmaf(second[0], second[1], before[i]);
        sums[i] = fmaf(first[0], first[1], one);
        rare |= model_is_tiny(first[0]) | model_is_tiny(first[1]) |
                model_is_tiny(second[0]) | model_is_tiny(second[1]) |
                model_is_tiny(before[i]) | model_is_tiny(one) | model_is_tiny(sums[i]);
    }
    for (int i = 0; rare != 0 && i < MODEL_LANES; i++) {
        sums[i] = model_flush(before[i]);
        for (int n = 1; n >= 0; n--)
            sums[i] =
                model_multiply_add(model_factor(a[i], n), model_factor(b[i], n), sums[i]);
    }
    memcpy(&sum, sums, sizeof sum);
    return sum;
}

/* --- matrix tiles --- */

/* Those of a thread. */
static _Thread_local struct {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shapes;
    uint32_t words[MODEL_TILES][MODEL_LANES][MODEL_LANES];
} model __attribute__((unused));

MODEL void _tile_loadconfig(const void *shapes) {
    memset(&model, 0, sizeof model);
    memcpy(&model.shapes, shapes, sizeof model.shapes);
    assert(model.shapes.palette == 1);
    for (int t = 0; t < MODEL_TILES; t++)
        assert(model.shapes.rows[t] <= MODEL_LANES && model.shapes.row_bytes[t] <= 64);
}

MODEL void _tile_release(void) {
    memset(&model, 0, sizeof model);
}

MODEL void _tile_zero(int t) {
    assert(model.shapes.rows[t] > 0);
    memset(model.words[t], 0, sizeof model.words[t]);
}

MODEL void _tile_loadd(int t, const void *from, size_t step) {
    _tile_zero(t);
    for (int r = 0; r < model.shapes.rows[t]; r++)
        memcpy(model.words[t][r], (const char *)from + (size_t)r * step,
               model.shapes.row_bytes[t]);
}

MODEL void _tile_stream_loadd(int t, const void *from, size_t step) {
    _tile_loadd(t, from, step);
}

MODEL void _tile_stored(int t, void *to, size_t step) {
    assert(model.shapes.rows[t] > 0);
    for (int r = 0; r < model.shapes.rows[t]; r++)
        memcpy((char *)to + (size_t)r * step, model.words[t][r],
               model.shapes.row_bytes[t]);
}

/* Writes factors 0 and 1 of the words of a row; returns the least of the magnitudes that
 * are not 0, or `least` if that is less. */
MODEL float model_split_row(const uint32_t row[MODEL_LANES],
                            float ret_factors[2][MODEL_LANES], float least) {
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < MODEL_LANES; k++) {
            float factor = model_factor(row[k], i), magnitude = fabsf(factor);
            ret_factors[i][k] = factor;
            least = magnitude < least && magnitude > 0 ? magnitude : least;
        }
    }
    return least;
}

/* Sums the products of a row of factors and `depth` rows of others, from 0 on. Where
 * products are not small, no sum is so either: it is a multiple of the last of the 16
 * bits of some product. */
MODEL void model_multiply_row(int depth, float x[2][MODEL_LANES],
                              float y[][2][MODEL_LANES], int small,
                              float ret_sums[2][MODEL_LANES]) {
    memset(ret_sums, 0, 2 * sizeof *ret_sums);
    for (int k = 0; k < depth; k++) {
        for (int i = 0; i < 2; i++) {
            for (int n = 0; n < MODEL_LANES; n++)
                ret_sums[i][n] =
                    small ? model_multiply_add(x[i][k], y[k][i][n], ret_sums[i][n])
                          : fmaf(x[i][k], y[k][i][n], ret_sums[i][n]);
        }
    }
}

MODEL_LARGE void _tile_dpbf16ps(int c, int a, int b) {
    int rows = model.shapes.rows[c], depth = model.shapes.row_bytes[a] / 4;
    float x[MODEL_LANES][2][MODEL_LANES], y[MODEL_LANES][2][MODEL_LANES];
    float least_x = INFINITY, least_y = INFINITY;

    assert(rows > 0 && rows == model.shapes.rows[a] && depth == model.shapes.rows[b] &&
           model.shapes.row_bytes[c] == model.shapes.row_bytes[b]);
    for (int m = 0; m < rows; m++)
        least_x = model_split_row(model.words[a][m], x[m], least_x);
    for (int k = 0; k < depth; k++)
        least_y = model_split_row(model.words[b][k], y[k], least_y);

    int small = !(least_x * least_y >= 0x1p-110F);
    for (int m = 0; m < rows; m++) {
        float sums[2][MODEL_LANES], row[MODEL_LANES];
        if (small)
            model_multiply_row(depth, x[m], y, 1, sums);
        else
            model_multiply_row(depth, x[m], y, 0, sums);
        memcpy(row, model.words[c][m], sizeof row);
        for (int n = 0; n < MODEL_LANES; n++)
            row[n] =
                model_flush(model_flush(row[n]) + model_flush(sums[0][n] + sums[1][n]));
        memcpy(model.words[c][m], row, model.shapes.row_bytes[c]);
    }
}

#endif
