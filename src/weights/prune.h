/* SPDX-License-Identifier: Apache-2.0 */
/* prune.h: models with fewer heads, and their files.
 *
 * The layout of a pruned model is d2l, whatever the layout that it comes from: there the
 * heads may be narrower than the inputs and outputs, whose sizes stay. H heads of size D,
 * of which H' are kept. */
#pragma once

#include <attnd/model.h>

/* Checks that layout d2l can hold a layer. Errors, with one line that names what it
 * cannot hold: ATTN_E_UNSUPPORTED. */
attn_status prune_check(const attn_model_info *info, attn_error *ret_error);

/* Creates a model from `model`, which prune_check() accepts, without the heads h with
 * left_out[h], which is [H] and leaves at least one. It computes what `model` computes
 * when head_mask is 0 for those heads. Without an output projection the heads' outputs
 * would move; the new model then has one, of zeros and ones, that puts them where they
 * were.
 *
 * `model` must not be one that serves only. The caller owns *ret_model, which has no
 * engine yet. Errors, with one line: ATTN_E_OVERFLOW, ATTN_E_NOMEM. */
attn_status prune_create_model(const attn_model *model, const bool *left_out,
                               attn_model **ret_model, attn_error *ret_error);

/* Creates a file from a model of prune_create_model(). Its __metadata__ has num_heads,
 * causal and context_length, so it is served without options. Errors, with one line:
 * those of safetensors_write_file(). */
attn_status prune_write_file(const attn_model *model, const char *path,
                             attn_error *ret_error);
