/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h: the attention layers of a checkpoint's folder: config.json, and
 * model.safetensors or its shards. See docs/checkpoints.md. */
#ifndef ATTND_WEIGHTS_FAMILIES_FOLDER_H
#define ATTND_WEIGHTS_FAMILIES_FOLDER_H

#include "weights/families/layer.h"

#include <attnd/model.h>
#include <sys/stat.h>

struct folder;

/* What a folder is asked for. All memory is borrowed for the call. */
struct folder_options {
    const char *layers; /* "0-3,7"; NULL: all */
    const char *layer;  /* one of them, by its name: "decoder.3.cross"; NULL: all */
    const char *prefix; /* of the tensors' names, where several fit; NULL: any */
    bool pre_norm;      /* apply the norm before each layer, too */
    size_t context_length;
};

/* Returns whether there is a folder at `path` that has a config.json. */
bool folder_is_at(const char *path);

/* Adds up what stat() says of config.json and all files of weights: number, size and time
 * of the last change. Two sums differ when a file was replaced. st_ino is 0 where the
 * folder has no such file. */
void folder_find_state(const char *path, struct stat *ret_state);

/* Opens the folder, and finds every layer that is asked for, and its tensors. Reads no
 * weights. `options` may be NULL: as if zero-initialised. The caller owns one share of
 * *ret_folder. Errors, with one line that names the folder, the file, the key or tensor,
 * and the remedy: ATTN_E_IO, _FORMAT, _SHAPE, _VALUE, _UNSUPPORTED, _OVERFLOW, _NOMEM. */
attn_status folder_open(const char *path, const struct folder_options *options,
                        struct folder **ret_folder, attn_error *ret_error);

/* The same for the text of a config.json and a file of safetensors in memory. The latter
 * is borrowed until folder_close(). Errors do not name a folder. */
attn_status folder_open_memory(const char *config, size_t config_size, const void *file,
                               size_t file_size, const struct folder_options *options,
                               struct folder **ret_folder, attn_error *ret_error);

/* Returns the folder with one share more; any thread may call it. Functions that take a
 * const folder may run at the same time. */
struct folder *folder_share(struct folder *folder);

/* Releases a share. The last one closes the files; NULL is fine. */
void folder_close(struct folder *folder);

/* Borrows the layers, in the order of their stacks; there is at least one. */
const struct layer *folder_get_layers(const struct folder *folder, size_t *ret_count);

/* Describes the model of layer `i`, but for its name. Errors, with one line: those of
 * model_describe(). */
attn_status folder_describe_model(const struct folder *folder, size_t i,
                                  const attn_engine_options *engine,
                                  attn_model_info *ret_info, attn_error *ret_error);

/* Checks that all layers can be served at the same time in `memory` bytes, of which
 * *bytes are already reserved. Adds theirs to them. Errors, with one line: those of
 * folder_describe_model(); ATTN_E_OVERFLOW when they are larger than `memory`, and
 * ATTN_E_NOMEM when they do not fit beside what is reserved. */
attn_status folder_check_models(const struct folder *folder,
                                const attn_engine_options *engine, size_t memory,
                                size_t *bytes, attn_error *ret_error);

/* Reads all numbers of layer `i` once, to check them, in the memory that they take as
 * float32. Errors: those of folder_create_model(), but for its engine. */
attn_status folder_check_weights(const struct folder *folder, size_t i,
                                 attn_error *ret_error);

/* Creates the model of layer `i`, called `name`. The caller owns *ret_model; the folder
 * may be closed before. Errors: those of folder_describe_model() and
 * attn_model_load(). */
attn_status folder_create_model(const struct folder *folder, size_t i, const char *name,
                                const attn_engine_options *engine, attn_model **ret_model,
                                attn_error *ret_error);

#endif
