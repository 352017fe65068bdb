/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h: parses NAME=FILE[,KEY=VALUE]..., the value of --model, and the same without
 * NAME=, an operand; and opens the folder that it names, which has many layers. */
#pragma once

#include "weights/families/folder.h"

#include <attnd/model.h>

struct model_spec {
    char *text;       /* owned; all pointers below point into it */
    const char *name; /* NULL in an operand */
    const char *path;
    attn_model_options options;
    const char *precision; /* NULL: as --precision says */
    /* The first key that only files, or only folders, have; constants; NULL: none. A
     * flag that is false does not count. */
    const char *file_key, *folder_key;
    struct folder_options folder; /* without those that files have, too */
};

/* Parses a value of --model when `named`, else an operand of attnd inspect.
 * On success the caller owns *ret_spec. Errors, with one line that names the option and
 * the key: ATTN_E_VALUE, ATTN_E_NOMEM. A path cannot hold a comma, but the
 * list of layers can. */
attn_status model_spec_parse(const char *text, bool named, struct model_spec *ret_spec,
                             attn_error *ret_error);

/* Makes the spec of a path, which may have commas, and of a JSON object of keys; NULL:
 * none. Numbers and booleans may be so in JSON. Otherwise as model_spec_parse(). */
attn_status model_spec_read(const char *path, const char *keys,
                            struct model_spec *ret_spec, attn_error *ret_error);

/* Frees the memory; a zeroed struct is fine. */
void model_spec_deinit(struct model_spec *spec);

/* Opens the folder that `spec` asks for. *ret_folder becomes NULL when the path is that
 * of a file; a key that only folders have is refused then. Errors, with one line: those
 * of folder_open(); ATTN_E_VALUE for a key that folders do not have. */
attn_status folder_open_spec(const struct model_spec *spec, struct folder **ret_folder,
                             attn_error *ret_error);

/* Adds a remedy to an error about the file at `path`: that its folder is what can be
 * loaded, perhaps with it as weights, where that has a config.json and the file does not
 * fit any layout; or how to download a model, where there is no file and `path` could be
 * its name at Hugging Face. Returns `status`. */
attn_status folder_hint(const char *path, attn_status status, attn_error *error);
