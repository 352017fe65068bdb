/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_tiles.h: numbers for tests of the set amx, and how such tests are run: by the
 * model, and by the CPU where it has matrix tiles. Include it after cmocka.h. */
#ifndef ATTND_TESTS_MATRIX_TILES_H
#define ATTND_TESTS_MATRIX_TILES_H

#include "math/kernels/sets.h"
#include "matrix_instructions.h"
#include "random_model.h"
#include "sample.h"

#include <math.h>
#include <string.h>

#ifndef __x86_64__
#define cpu_instructions model_instructions
#define kernels_amx_bf16 model_amx_bf16
#define kernels_amx_f32  model_amx_f32
#endif

/* A word of two numbers of bfloat16. */
#define BOTH(x, y) (bits_of(x) >> 16 | bits_of(y) >> 16 << 16)

/* What a test is about. */
static const struct instructions *instructions;
static const struct kernels *kernels;

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float factor(uint32_t word, int n) {
    return float_of(n == 0 ? word << 16 : word >> 16 << 16);
}

static inline bool same_float(uint32_t a, uint32_t b) {
    return a == b || (isnan(float_of(a)) && isnan(float_of(b)));
}

/* Whether words are the same numbers, or both are NaN. */
static inline void expect_same(const void *got, const void *expected, size_t count,
                               bool pairs, const char *what) {
    const uint32_t *a = got, *b = expected;

    for (size_t i = 0; i < count; i++) {
        bool same = pairs ? same_float(a[i] << 16, b[i] << 16) &&
                                same_float(a[i] >> 16 << 16, b[i] >> 16 << 16)
                          : same_float(a[i], b[i]);
        if (!same)
            fail_msg("%s: %08x instead of %08x at %zu", what, a[i], b[i], i);
    }
}

/* Draws any number: often an ordinary one, else one of any size, 0, infinity or NaN. */
static inline float random_number(uint64_t *seed) {
    static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000,
                                       0x7fc00000, 0x7f7fffff, 0x00800000, 0x00000001};
    uint32_t bits = (uint32_t)(random_next(seed) >> 20);

    switch (random_between(seed, 0, 5)) {
    case 0:
        return float_of(bits | 0x00400000); /* no signaling NaN */
    case 1:
        return float_of(special[bits % 8]);
    case 2: /* products about the least normal number */
        return float_of((bits & 0x807fffff) | (uint32_t)random_between(seed, 50, 68)
                                                  << 23);
    default:
        return float_of((bits & 0x807fffff) | (uint32_t)random_between(seed, 120, 130)
                                                  << 23);
    }
}

static inline void random_numbers(uint64_t *seed, float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        numbers[i] = random_number(seed);
}

/* Runs tests with the model, and where the CPU has tiles with them, and then those that
 * compare both. Returns how many failed. */
static inline int run_with_tiles(const struct CMUnitTest *tests, size_t count,
                                 const struct CMUnitTest *beside_model,
                                 size_t beside_count) {
    const char *refused;
    bool has_tiles = kernels_have_matrix(&refused);

    print_message("matrix tiles: %s\n", has_tiles ? "CPU and model" : "model");
    instructions = &model_instructions;
    kernels = &model_amx_bf16;
    int failures = _cmocka_run_group_tests("model", tests, count, NULL, NULL);
    if (!has_tiles)
        return failures;
    instructions = &cpu_instructions;
    kernels = &kernels_amx_bf16;
    failures += _cmocka_run_group_tests("CPU", tests, count, NULL, NULL);
    return failures + _cmocka_run_group_tests("CPU and model", beside_model, beside_count,
                                              NULL, NULL);
}

#endif
