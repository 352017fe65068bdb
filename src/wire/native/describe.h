/* SPDX-License-Identifier: Apache-2.0 */
/* describe.h: the descriptions of models for GET /v1/models and GET /v1/models/NAME. */
#pragma once

#include "base/buf.h"

#include <attnd/model.h>

/* Adds one model's description as a JSON object. */
void wire_native_print_model(const attn_model_info *info, struct buf *body);

/* Adds {"models":[...]}. */
void wire_native_print_models(const attn_model *const *models, size_t num_models,
                              struct buf *body);
