/* SPDX-License-Identifier: Apache-2.0 */
/* file.h: reads files in the safetensors format (safetensors/header.h).
 *
 * Opening checks all of the header. Data is read only on request, and with pread(): a
 * mapped file that is truncated later would kill the process. */
#pragma once

#include "safetensors/header.h"

/* Opens the regular file at `path`. The caller owns *ret_file. On failure ret_error,
 * which may be NULL, holds one line that names the tensor and the reason, but not the
 * file. Errors: ATTN_E_IO, _FORMAT, _NOMEM. */
attn_status safetensors_open_file(const char *path, struct safetensors **ret_file,
                                  attn_error *ret_error);

/* Opens a file in memory, which is borrowed until safetensors_close(); else as above. */
attn_status safetensors_open_memory(const void *memory, size_t size,
                                    struct safetensors **ret_file, attn_error *ret_error);

/* Closes the file; NULL is fine. Borrowed tensors and metadata become invalid. */
void safetensors_close(struct safetensors *file);

/* Borrows the path that the file was opened by; "" of one in memory. */
const char *safetensors_get_path(const struct safetensors *file);

/* Borrows the header, whose tensors can be read. */
const struct safetensors_header *safetensors_get_header(const struct safetensors *file);

/* Borrows the text of `key` in __metadata__; NULL when there is none. */
const char *safetensors_get_metadata(const struct safetensors *file, const char *key);

/* Checks that safetensors_read() knows the dtype of a tensor. Errors, with one line that
 * names the tensor and the remedy: ATTN_E_UNSUPPORTED. */
attn_status safetensors_check_dtype(const struct safetensors_tensor *tensor,
                                    attn_error *ret_error);

/* Reads elements first .. first+count-1, which must be within the tensor of an open file,
 * as float32; with scales, as the product that is rounded to float32. Errors, with one
 * line that names the tensor and the element: ATTN_E_UNSUPPORTED for a dtype other than
 * F32, F16, BF16 or F64, ATTN_E_VALUE for a number that is not finite or is too large for
 * float32, and for a scale that is negative or hides numbers, and ATTN_E_IO. After a
 * failure the content of ret_values is unspecified. What is read goes to the digest of
 * the thread (safetensors/digest.h), as it is stored. */
attn_status safetensors_read(const struct safetensors_tensor *tensor, size_t first,
                             size_t count, float *ret_values, attn_error *ret_error);

/* Reads a whole tensor, else as safetensors_read(). NULL is fine and reads nothing. */
attn_status safetensors_read_all(const struct safetensors_tensor *tensor,
                                 float *ret_values, attn_error *ret_error);
