/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h: reads files that need not be trusted in the safetensors format.
 *
 * A file is 8 bytes N (little-endian), N bytes of JSON, and the data:
 *
 *     {"__metadata__": {"num_heads": "2"},
 *      "W_q.weight": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}, ...}
 *
 * Opening checks all of the header: every tensor's span fits its shape, and the spans
 * follow each other without hole or overlap from the first byte of the data to the end of
 * the file. Data is read only when asked for, with pread: a mapped file that is truncated
 * later would kill the process. */
#ifndef ATTND_WEIGHTS_SAFETENSORS_H
#define ATTND_WEIGHTS_SAFETENSORS_H

#include "base/dtype.h"

#include <attnd/status.h>
#include <stdint.h>

#define SAFETENSORS_HEADER_MAX 100000000 /* bytes of JSON, as in the reference reader */

struct safetensors_tensor {
    const char *name;
    const struct dtype *dtype;
    size_t rank;
    const size_t *shape; /* [rank] */
    size_t elements;     /* product of the shape; 1 for rank 0 */
    uint64_t begin, end; /* span in bytes, counted from the first byte of the data */
};

struct safetensors;

/* Opens the regular file at `path`. The caller owns *ret_file. On failure ret_error,
 * which may be NULL, holds one line that names the tensor and the reason, but not the
 * file. Errors: ATTND_E_IO, _FORMAT, _NOMEM. */
attnd_status safetensors_open_file(const char *path, struct safetensors **ret_file,
                                   attnd_error *ret_error);

/* The same for a file in memory, which is borrowed until safetensors_close(). */
attnd_status safetensors_open_memory(const void *memory, size_t size,
                                     struct safetensors **ret_file,
                                     attnd_error *ret_error);

/* Closes the file; NULL is fine. Tensors and metadata that were borrowed are gone. */
void safetensors_close(struct safetensors *file);

/* Borrows all tensors, sorted by name as strcmp() does. */
const struct safetensors_tensor *safetensors_get_tensors(const struct safetensors *file,
                                                         size_t *ret_count);

/* Borrows the text of `key` in __metadata__; NULL when there is none. */
const char *safetensors_get_metadata(const struct safetensors *file, const char *key);

/* Reads elements first .. first+count-1 of a tensor of this file, which must be within
 * it, as float32. Refuses what attnd cannot compute with, naming tensor and element:
 * other types than F32, F16, BF16 and F64 (ATTND_E_UNSUPPORTED), numbers that are not
 * finite or too large for float32 (ATTND_E_VALUE); and ATTND_E_IO. ret_values then holds
 * rubbish. */
attnd_status safetensors_read(const struct safetensors *file,
                              const struct safetensors_tensor *tensor, size_t first,
                              size_t count, float *ret_values, attnd_error *ret_error);

#endif
