/* SPDX-License-Identifier: Apache-2.0 */
/* kinds.h: of which kind each layer of a stack is: with attention or without, with a
 * window or without, rotated or not. */
#pragma once

#include "weights/families/config.h"
#include "weights/families/family.h"

/* A layer whose kind is asked for. */
struct kind_source {
    const struct family *family;
    const struct config_section *section;
    size_t num_layers, index;
};

/* Returns how many layers the lists of config.json are for; 0 without a list. */
size_t kind_count_layers(const struct family *family,
                         const struct config_section *section);

/* Returns whether the layer has attention. All functions leave an error in the section,
 * ATTN_E_VALUE or ATTN_E_UNSUPPORTED with one line, when config.json does not say. */
bool kind_attends(const struct kind_source *layer);

/* Returns whether the layer has a window, by the rule of its family. `window` is the one
 * that such layers have, or 0. */
bool kind_is_sliding(const struct kind_source *layer, size_t window);

/* Returns whether the layer attends within chunks; `rotated` says if it is rotated. */
bool kind_is_chunked(const struct kind_source *layer, bool rotated);

/* Returns whether the queries and keys of the layer are rotated where its family rotates;
 * `sliding` says if it has a window. */
bool kind_is_rotated(const struct kind_source *layer, bool sliding);

/* Returns the layer whose keys and values this one takes: itself, unless it is one of the
 * last, which borrow those of an earlier layer of their kind; *ret_borrows says so.
 * `sliding` says if it has a window, which is `window`. */
size_t kind_find_lender(const struct kind_source *layer, bool sliding, size_t window,
                        bool *ret_borrows);
