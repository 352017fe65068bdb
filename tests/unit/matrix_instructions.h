/* SPDX-License-Identifier: Apache-2.0 */
/* matrix_instructions.h: the instructions of tests/model/immintrin.h one by
 * one, by the model and by the CPU. */
#ifndef ATTND_TESTS_MATRIX_INSTRUCTIONS_H
#define ATTND_TESTS_MATRIX_INSTRUCTIONS_H

#include <stdint.h>

enum { WORDS = 16 }; /* in a vector, and in a full row of a tile */

/* Words, or numbers, as the CPU loads them. */
union vector_words {
    uint32_t words[WORDS];
    float numbers[WORDS];
} __attribute__((aligned(64)));

/* One result of each instruction on vectors. */
struct vector_results {
    union vector_words sum, product, larger, rounded, rest, scaled, pairs;
};

struct instructions {
    /* c [rows, columns] += a [rows, depth] * b [depth, columns], by tiles of these
     * shapes. Rows of all are whole vectors apart. */
    void (*multiply)(int rows, int columns, int depth, const union vector_words *a,
                     const union vector_words *b, union vector_words *c);

    /* x * y + z; z + x * y of pairs; the larger of x and y; x rounded, and
     * what is above the next lower integer; x * 2^y; pairs of neighbours in x and y. */
    void (*compute)(const union vector_words *x, const union vector_words *y,
                    const union vector_words *z, struct vector_results *results);
};

/* The second exists on x86-64 only, and runs where kernels_have_matrix(). */
extern const struct instructions model_instructions, cpu_instructions;

#endif
