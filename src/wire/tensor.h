/* SPDX-License-Identifier: Apache-2.0 */
/* tensor.h: one tensor of a request, whatever it was read from. */
#ifndef ATTND_WIRE_TENSOR_H
#define ATTND_WIRE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>

#define WIRE_LEVELS_UNBATCHED 2 /* of lists: [T][width] */
#define WIRE_LEVELS_BATCHED   3 /* [B][T][width] */

/* The rows of all sequences follow each other without padding. Every size is at least 1;
 * the memory is an arena's, or the rows the body's. */
struct wire_tensor {
    bool batched;         /* had a batch axis */
    size_t num_sequences; /* B; 1 when not batched */
    size_t *lens;         /* [B], rows of each sequence */
    size_t num_rows;      /* sum of lens */
    size_t width;
    const float *rows; /* [num_rows, width] */
};

#endif
