/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: the tensors of a model folder, from model.safetensors or else from the
 * shards that model.safetensors.index.json names. */
#pragma once

#include "weights/layer/view.h"

#define TENSORS_SHARDS_MAX 512

/* Empty when zeroed. */
struct folder_tensors {
    struct tensor_view view;           /* of all files */
    struct safetensors_tensor *copies; /* what the view has of shards; else NULL */
    struct safetensors *files[TENSORS_SHARDS_MAX];
    size_t num_files;
};

/* Returns whether the folder at `path` has model.safetensors or its index. */
bool folder_tensors_exist(const char *path);

/* Opens the files of the folder at `path` and reads their headers, but no weights. The
 * caller must deinit *ret_tensors, also after a failure. An error's text is one line with
 * the file and the remedy. Returns ATTN_E_IO, _FORMAT, _VALUE or _NOMEM, or
 * ATTN_E_UNSUPPORTED when the folder only has weights in another format. */
attn_status folder_tensors_open(const char *path, struct folder_tensors *ret_tensors,
                                attn_error *ret_error);

/* Refuses the folder at `path`, with a remedy, where a file of it is a link to nothing,
 * one in it is meant, or it has weights in a known other format only. Otherwise returns
 * ATTN_E_FORMAT with the text `otherwise`, or ATTN_OK where that is NULL. */
attn_status folder_tensors_refuse(const char *path, const char *otherwise,
                                  attn_error *ret_error);

/* Closes the files and frees the memory; zeroed tensors are fine. */
void folder_tensors_deinit(struct folder_tensors *tensors);
