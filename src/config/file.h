/* SPDX-License-Identifier: Apache-2.0 */
/* file.h: reads the JSON of --config. */
#pragma once

#include <attnd/status.h>
#include <jansson.h>

/* Parses the regular file at `path`. Returns a new reference, of any type; NULL after an
 * error. Then *error, unless it has one, has a line that names the file, and ATTN_E_IO,
 * ATTN_E_VALUE for what is not a regular file, or ATTN_E_FORMAT for what is not JSON. */
json_t *config_file_read(const char *path, attn_error *error);
