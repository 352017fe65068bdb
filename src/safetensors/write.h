/* SPDX-License-Identifier: Apache-2.0 */
/* write.h: creates a file in the safetensors format (safetensors/header.h). */
#pragma once

#include <attnd/status.h>
#include <stddef.h>

#define SAFETENSORS_SOURCES_MAX 16 /* tensors of a file that is written */

/* A float32 tensor to write. */
struct safetensors_source {
    const char *name;
    const float *values;  /* [rows, columns], or [rows] */
    size_t rows, columns; /* columns is 0 for a vector */
};

/* An entry of __metadata__. */
struct safetensors_text {
    const char *key, *value;
};

/* Creates the file at `path`, with the data of `tensors` in their order. Names, keys and
 * values have at most 64 bytes of ASCII, without control characters, quotes and
 * backslashes; names and keys are distinct. Errors: those of output_create_file(), and
 * ATTN_E_NOMEM. */
attn_status safetensors_write_file(const char *path,
                                   const struct safetensors_source *tensors, size_t count,
                                   const struct safetensors_text *metadata,
                                   size_t num_metadata, attn_error *ret_error);
