/* SPDX-License-Identifier: Apache-2.0 */
/* header.h: the safetensors format, of files and of requests alike. Neither is trusted.
 *
 * 8 bytes N (little-endian), N bytes of JSON, and the data:
 *
 *     {"__metadata__": {"num_heads": "2"},
 *      "W_q.weight": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}, ...}
 *
 * All of the header is checked: every tensor's span fits its shape, and the spans follow
 * each other without hole or overlap from the first byte of the data to the last. The
 * data itself is not read. */
#pragma once

#include "base/dtype.h"

#include <attnd/status.h>
#include <stdint.h>

/* The bytes before the JSON, which hold its size. */
#define SAFETENSORS_SIZE_BYTES 8
/* Bytes of JSON, as in the reference reader. */
#define SAFETENSORS_HEADER_MAX ((size_t)100000000)

struct safetensors;
struct safetensors_scale;

struct safetensors_tensor {
    const char *name;
    const struct safetensors *file; /* that has its data; NULL: it is in a request */
    const struct dtype *dtype;
    size_t rank;
    const size_t *shape; /* [rank] */
    size_t elements;     /* product of the shape; 1 for rank 0 */
    uint64_t begin, end; /* span in bytes, counted from the first byte of the data */
    /* What multiplies the numbers of a matrix in FP8; NULL, as the parser leaves it:
     * nothing */
    const struct safetensors_scale *scale;
};

/* A scale for each block of a matrix [R, C]. */
struct safetensors_scale {
    struct safetensors_tensor tensor; /* of ceil(R / rows) x ceil(C / columns) numbers */
    size_t rows, columns;             /* of a block; the last ones may be smaller */
};

struct json_t; /* of jansson */

/* A parsed header; empty when zeroed. */
struct safetensors_header {
    struct json_t *json;                /* owns the names and the metadata */
    struct safetensors_tensor *tensors; /* [num_tensors], sorted as strcmp() does */
    size_t num_tensors;
    size_t *dims;      /* the shapes of all tensors, one after the other */
    const char *wrong; /* after a failure: the name of the tensor at fault, or NULL */
};

/* Reports how many bytes of JSON follow the first 8 of `size` bytes; more than `max` are
 * refused. Errors, with one line in ret_error, which may be NULL: ATTN_E_FORMAT. */
attn_status safetensors_find_header(const unsigned char *bytes, uint64_t size, size_t max,
                                    size_t *ret_header_size, attn_error *ret_error);

/* Parses the `size` bytes of JSON, at least 2, that `data_size` bytes of data follow. The
 * text may be freed afterwards. *ret_header is overwritten; the caller must deinit it,
 * also after a failure, when only `wrong` may be read. Errors, with one line that names
 * the tensor and the reason: ATTN_E_FORMAT, _NOMEM. */
attn_status safetensors_header_parse(const char *text, size_t size, uint64_t data_size,
                                     struct safetensors_header *ret_header,
                                     attn_error *ret_error);

/* Frees the memory; what was borrowed becomes invalid. */
void safetensors_header_deinit(struct safetensors_header *header);

/* Borrows a tensor by its name; NULL when there is none. */
const struct safetensors_tensor *
safetensors_header_find(const struct safetensors_header *header, const char *name);

/* Borrows the object of strings __metadata__; NULL when there is none. */
const struct json_t *
safetensors_header_get_metadata(const struct safetensors_header *header);
