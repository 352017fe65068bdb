/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: element types by their names in safetensors files, and reading elements.
 *
 * Elements may be at any alignment. They are little-endian, as all is that attnd reads
 * and writes in binary form, and eight bytes of a text that are read at once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "attnd runs on little-endian machines only");

struct dtype {
    const char *name;
    size_t bits; /* of one element; 4 and 6 occur */
    /* Converts `count` elements to the nearest float32; NULL when attnd does not compute
     * with this type. What is not a finite float32 becomes NaN or infinite. */
    void (*to_float)(const unsigned char *bytes, size_t count, float *ret_values);
};

/* FP8 (E4M3: a sign, 4 bits of exponent, 3 of fraction, no infinities) and the powers of
 * two that scale it (E8M0), as types that are converted; NaN stays NaN. What dtype_find()
 * returns for their names is not: these numbers mean nothing without what scales them. */
extern const struct dtype dtype_e4m3, dtype_e8m0;

/* Returns the type of that name, or NULL; constant. Thread-safe. */
const struct dtype *dtype_find(const char *name);

/* Returns whether elements of the type `name` can be used as an array of float without
 * a copy: they are float32, and aligned. */
bool dtype_is_float_array(const char *name, const unsigned char *bytes);

/* Returns a number rounded to bfloat16, to even. It is finite, and not near the largest
 * float32. */
static inline float dtype_round_bf16(float number) {
    uint32_t bits;

    memcpy(&bits, &number, sizeof bits);
    bits += 0x7fff + (bits >> 16 & 1);
    bits &= 0xffff0000;
    memcpy(&number, &bits, sizeof bits);
    return number;
}

/* Returns the signed integer of `size` bytes, 4 or 8, at `bytes`. */
int64_t dtype_read_integer(const unsigned char *bytes, size_t size);
