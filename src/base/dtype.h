/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h: element types by their names in safetensors files, and conversion to float32.
 */
#ifndef ATTND_BASE_DTYPE_H
#define ATTND_BASE_DTYPE_H

#include <stddef.h>

struct dtype {
    const char *name;
    size_t bits; /* of one element; 4 and 6 occur */
    /* Converts `count` little-endian elements, at any alignment, to the nearest float32;
     * NULL when attnd does not compute with this type. What is no finite float32 becomes
     * NaN or infinite. */
    void (*to_float)(const unsigned char *bytes, size_t count, float *ret_values);
};

/* Returns the type of that name, or NULL; constant. Thread-safe. */
const struct dtype *dtype_find(const char *name);

#endif
