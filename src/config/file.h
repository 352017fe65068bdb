/* SPDX-License-Identifier: Apache-2.0 */
/* file.h: reads the JSON of --config. */
#pragma once

#include <attnd/status.h>
#include <jansson.h>

/* Parses the regular file at `path`. *ret_root is a new reference, of any type. Errors,
 * with one line that names the file: ATTN_E_IO, ATTN_E_VALUE for what is not a regular
 * file, ATTN_E_FORMAT for what is not JSON. */
attn_status config_file_read(const char *path, json_t **ret_root, attn_error *ret_error);
