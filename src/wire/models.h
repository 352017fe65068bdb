/* SPDX-License-Identifier: Apache-2.0 */
/* models.h: finds the model that a request names, and what it must have. */
#pragma once

#include "wire/problem.h"

#include <attnd/model.h>
#include <stdbool.h>
#include <stddef.h>

/* Returns the index of the model with this name of `size` bytes, or num_models when there
 * is none. Thread-safe. */
size_t wire_models_index(const attn_model *const *models, size_t num_models,
                         const char *name, size_t size);

/* Finds the model of that name, or the only one when `name` is NULL. Returns false with
 * *ret_problem set: Model not named when several are loaded and none is named, or Unknown
 * model. */
bool wire_model_find(const char *name, const attn_model *const *models, size_t num_models,
                     const attn_model **ret_model, struct wire_problem *ret_problem);

/* Returns whether the model's keys come from another stack than its queries: a request
 * has no positions then. */
bool wire_model_is_cross(const attn_model_info *info);

/* Returns whether keys come from elsewhere than queries, from another stack or an earlier
 * layer: a request must have them then. */
bool wire_model_needs_keys(const attn_model_info *info);
