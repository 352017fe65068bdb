/* SPDX-License-Identifier: Apache-2.0 */
/* open.h: a checkpoint's folder, which has many layers, as a specification names it. */
#pragma once

#include "models/spec.h"

#include <attnd/model.h>

struct folder;

/* Opens the folder that `spec` asks for. *ret_folder becomes NULL when the path is that
 * of a file; a key that only folders have is refused then. Errors, with one line: those
 * of folder_open(); ATTN_E_VALUE for a key that folders do not have. */
attn_status folder_open_spec(const struct model_spec *spec, struct folder **ret_folder,
                             attn_error *ret_error);

/* Adds a remedy to an error about the file at `path`: that its folder is what can be
 * loaded, where that has a config.json and the file does not fit any layout; or how to
 * download a model, where there is no file and `path` could be its name at Hugging Face.
 * Returns `status`. */
attn_status folder_hint(const char *path, attn_status status, attn_error *error);
