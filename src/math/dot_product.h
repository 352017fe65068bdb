/* SPDX-License-Identifier: Apache-2.0 */
/* dot_product.h: attention without a model is a layer without projections: a model that
 * has sizes and options, but no weights. What serves layers serves it too. */
#pragma once

#include "math/model.h"

#include <attnd/dot_product.h>

/* Fills in a model in memory of the caller, which borrows sinks, slopes and `cpu` of the
 * options and is not destroyed. attn_plan(), attn_run() and attn_model_get_info() take
 * it; its layout is "dot-product", and info.projection.given is set. Thread-safe; does
 * not allocate. Errors, with one line in ret_error and *ret_model untouched: those that
 * attn_dot_product_plan() has more than attn_plan(), but for missing values; and
 * ATTN_E_OVERFLOW. */
attn_status dot_product_init(const attn_dot_product *options, attn_model *ret_model,
                             attn_error *ret_error);
