/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h: the attention layers of a checkpoint's folder: config.json, and
 * model.safetensors or its shards. See docs/checkpoints.md. */
#pragma once

#include "weights/layer/layer.h"

#include <attnd/model.h>
#include <sys/stat.h>

struct folder;

/* The layers of a folder that the caller wants. The texts are borrowed for the call
 * only. */
struct folder_options {
    const char *layers; /* "0-3,7"; NULL: all */
    const char *layer;  /* one of them, by its name: "decoder.3.cross"; NULL: all */
    const char *prefix; /* of the tensors' names, where several fit; NULL: any */
    const char *causal; /* "true" or "false": the mask of all layers but cross ones; NULL:
                           as config.json and the family say */
    const char *pre_norm; /* "true" or "false": models also apply the norm before the
                             layer; NULL: where its numbers are known */
    size_t context_length;
};

/* Returns whether there is a folder at `path` that has a config.json. */
bool folder_is_at(const char *path);

/* Returns whether the table has the family that the folder's config.json names, or that
 * cannot be told from it. */
bool folder_has_family(const char *path);

/* Sums inode numbers, sizes and write times of config.json and all weight files. The
 * caller compares two sums to see that a file was replaced. st_ino is 0 where there are
 * none of these files. */
void folder_find_state(const char *path, struct stat *ret_state);

/* Returns whether two states, of files or of folders, show the same files, unchanged.
 * They do not where st_ino is 0. */
bool folder_state_is_same(const struct stat *a, const struct stat *b);

/* Opens the folder, and finds every layer that is asked for, and its tensors. Reads no
 * weights. NULL `options` act as zeroed ones. The caller owns one share of
 * *ret_folder. Errors, with one line that names the folder, the file, the key or tensor,
 * and the remedy: ATTN_E_IO, _FORMAT, _SHAPE, _VALUE, _UNSUPPORTED, _OVERFLOW, _NOMEM. */
attn_status folder_open(const char *path, const struct folder_options *options,
                        struct folder **ret_folder, attn_error *ret_error);

/* Adds a share, and returns the folder. Any thread may call this. Functions that take a
 * const folder may run at the same time. */
struct folder *folder_share(struct folder *folder);

/* Releases a share. The last one closes the files; NULL is fine. */
void folder_close(struct folder *folder);

/* Returns the layers, at least one, stack by stack. The folder keeps owning them.
 * model_describe() describes the model of each. */
const struct layer *folder_get_layers(const struct folder *folder, size_t *ret_count);

/* What a folder may leave uncertain. */
enum folder_note { FOLDER_NOTE_MASK, FOLDER_NOTE_NORM, FOLDER_NUM_NOTES };

/* Returns in what the mask may differ from that of the model, or which rows the layers
 * take since a norm is missing, with the remedy; NULL where it is certain. The folder
 * keeps owning the text. */
const char *folder_get_note(const struct folder *folder, enum folder_note which);

/* Checks that all layers can be served at the same time in `memory` bytes, of which
 * *bytes are already reserved. Adds the bytes of all layers to *bytes. Errors: those of
 * model_describe(); ATTN_E_OVERFLOW when the layers alone exceed `memory`, and
 * ATTN_E_NOMEM when they exceed what is left of it. Each has one line. */
attn_status folder_check_models(const struct folder *folder,
                                const attn_engine_options *engine, size_t memory,
                                size_t *bytes, attn_error *ret_error);

/* Creates the model of layer `i`, called `name`. The caller owns *ret_model, which
 * remains valid after folder_close(). Errors: those of model_describe() and
 * attn_model_load(). */
attn_status folder_create_model(const struct folder *folder, size_t i, const char *name,
                                const attn_engine_options *engine, attn_model **ret_model,
                                attn_error *ret_error);

/* Checks the weights of layer `i`, see layer_check(), with errors that name it. One
 * thread at a time may check a layer. */
attn_status folder_check_layer(struct folder *folder, size_t i, attn_error *ret_error);
