/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.h: tells by its first bytes, or its name, what a file is, and how one of
 * another program becomes safetensors. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

#define SAFETENSORS_FOREIGN_MAX 256 /* first bytes of a file that are looked at */

/* Returns whether the file at `path`, which begins with these bytes and is not
 * safetensors, is one that another program wrote. If so, ret_error, which may be NULL,
 * holds one line that says which, and what makes safetensors of it: ATTN_E_FORMAT. Give
 * SAFETENSORS_FOREIGN_MAX bytes where the file has them. */
bool safetensors_find_foreign(const unsigned char *bytes, size_t size, const char *path,
                              attn_error *ret_error);
