/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: element types by their names in safetensors files, and reading elements.
 *
 * Elements are little-endian, and may be at any alignment. */
#ifndef ATTND_BASE_DTYPE_H
#define ATTND_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dtype {
    const char *name;
    size_t bits; /* of one element; 4 and 6 occur */
    /* Converts `count` elements to the nearest float32; NULL when attnd does not compute
     * with this type. What is not a finite float32 becomes NaN or infinite. */
    void (*to_float)(const unsigned char *bytes, size_t count, float *ret_values);
};

/* Returns the type of that name, or NULL; constant. Thread-safe. */
const struct dtype *dtype_find(const char *name);

/* Returns whether elements of the type `name` can be used as an array of float without
 * a copy: they are float32, and aligned. */
bool dtype_is_float_array(const char *name, const unsigned char *bytes);

/* Returns the signed integer of `size` bytes, 4 or 8, at `bytes`. */
int64_t dtype_read_integer(const unsigned char *bytes, size_t size);

#endif
