/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: the tensors of a folder: those of model.safetensors, or those that
 * model.safetensors.index.json promises, in its shards. */
#ifndef ATTND_WEIGHTS_FAMILIES_TENSORS_H
#define ATTND_WEIGHTS_FAMILIES_TENSORS_H

#include "safetensors/file.h"

#define TENSORS_SHARDS_MAX 512

/* Empty when zeroed. */
struct folder_tensors {
    const struct safetensors_tensor *
        *items; /* [count], sorted by name as strcmp() does */
    size_t count;
    struct safetensors **files; /* [num_files] */
    size_t num_files;
};

/* Opens the files of the folder at `path`, and reads all headers, but no weights. The
 * caller must deinit *ret_tensors, also after a failure. Errors, with one line that names
 * the file and the remedy: ATTN_E_IO, _FORMAT, _NOMEM; ATTN_E_UNSUPPORTED for a folder
 * with weights in another format only. */
attn_status folder_tensors_open(const char *path, struct folder_tensors *ret_tensors,
                                attn_error *ret_error);

/* Refuses the folder at `path` for the weights of another program that it has, or else
 * with the line `otherwise`. Returns ATTN_E_UNSUPPORTED or ATTN_E_FORMAT. */
attn_status folder_tensors_refuse(const char *path, const char *otherwise,
                                  attn_error *ret_error);

/* The same for one file in memory, which is borrowed. */
attn_status folder_tensors_open_memory(const void *memory, size_t size,
                                       struct folder_tensors *ret_tensors,
                                       attn_error *ret_error);

/* Closes the files and frees the memory; zeroed tensors are fine. */
void folder_tensors_deinit(struct folder_tensors *tensors);

/* Returns the tensor of that name, or NULL. Takes logarithmic time. */
const struct safetensors_tensor *folder_tensors_find(const struct folder_tensors *tensors,
                                                     const char *name);

/* Returns the index of the first tensor whose name does not sort before `name`. */
size_t folder_tensors_lower(const struct folder_tensors *tensors, const char *name);

#endif
