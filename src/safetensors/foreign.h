/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.h: tells by its first bytes, or its name, what a file is, and how one of
 * another program becomes safetensors. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

#define SAFETENSORS_BEGIN_MIN   9   /* bytes that tell safetensors from JSON */
#define SAFETENSORS_FOREIGN_MAX 256 /* first bytes of a file that are looked at */

/* The file should have been the tensors of a layer, or those of a request. */
enum safetensors_use { SAFETENSORS_OF_LAYER, SAFETENSORS_OF_REQUEST };

/* Returns whether a file that begins with these bytes is safetensors and not text. Fewer
 * than SAFETENSORS_BEGIN_MIN bytes are not. */
bool safetensors_is_likely(const unsigned char *bytes, size_t size);

/* Returns whether the file at `path`, which begins with these bytes and is not
 * safetensors, is one that another program wrote. If so, ret_error, which may be NULL,
 * holds one line that says which, and what makes safetensors of it: ATTN_E_FORMAT. Give
 * SAFETENSORS_FOREIGN_MAX bytes where the file has them. */
bool safetensors_find_foreign(const unsigned char *bytes, size_t size, const char *path,
                              enum safetensors_use use, attn_error *ret_error);
