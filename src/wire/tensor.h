/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h: one tensor of a request, in the same form whatever it was read from. */
#ifndef ATTND_WIRE_TENSOR_H
#define ATTND_WIRE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#define WIRE_LEVELS_UNBATCHED 2 /* of lists: [T][width] */
#define WIRE_LEVELS_BATCHED   3 /* [B][T][width] */

/* The rows of all sequences follow each other without padding. Every count, length and
 * width is at least 1. The memory is an arena's, but the rows may be in the body. */
struct wire_tensor {
    bool batched;         /* it has a batch axis */
    bool packed;          /* the client counts the rows of all sequences through */
    size_t num_sequences; /* B; 1 when not batched */
    size_t *lens;         /* [B], rows of each sequence */
    size_t num_rows;      /* sum of lens */
    size_t width;
    const float *rows; /* [num_rows, width] */
};

#endif
