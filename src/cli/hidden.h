/* SPDX-License-Identifier: Apache-2.0 */
/* hidden.h: hidden states that an engine has written, as vLLM does: what enters some
 * layers of a model. The file does not say which layers these are. */
#pragma once

#include "cli/request_file.h"

struct folder;
struct hidden;

/* Opens the file --data when it is safetensors with `hidden_states`; else *ret_hidden
 * becomes NULL. --layers has the ids of its layers. The caller owns *ret_hidden. Errors,
 * with one line: ATTN_E_SHAPE and ATTN_E_VALUE for a shape or ids that do not fit. */
attn_status hidden_open(const struct config_heads *options, struct hidden **ret_hidden,
                        attn_error *ret_error);

/* Closes the file; NULL is fine. */
void hidden_close(struct hidden *hidden);

/* Finds the layer that each state enters: ret_layers [*ret_count], of the caller, has
 * numbers of the folder's layers. *ret_norm is whether any has a norm before it, which
 * must then be part of its model. Errors: ATTN_E_VALUE, ATTN_E_UNSUPPORTED for a layer
 * whose keys another state makes, ATTN_E_NOMEM. */
attn_status hidden_find_layers(const struct hidden *hidden, const struct folder *folder,
                               size_t **ret_layers, size_t *ret_count, bool *ret_norm,
                               attn_error *ret_error);

/* Calls `use` with state `i`: one sequence, with the mask of the model. Several threads
 * may call this. Errors: those of `use` and of safetensors_read(); ATTN_E_SHAPE for rows
 * of another width; ATTN_E_NOMEM for more than --max-memory. */
attn_status hidden_read(const struct hidden *hidden, size_t i,
                        const struct config *config, const attn_model *model,
                        request_use *use, void *context, attn_error *ret_error);
