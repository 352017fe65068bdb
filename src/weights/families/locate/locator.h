/* SPDX-License-Identifier: Apache-2.0 */
/* locator.h: what is searched for the tensors of a layer, and how a tensor is checked. */
#pragma once

#include "weights/families/traits.h"

#define VECTOR 0 /* as the columns of an expected shape: it has one dimension */

/* All but the layer is borrowed; its tensors are filled in. */
struct locator {
    const struct family *family;
    const char *type; /* of the family, as in struct match */
    const struct match_stack *stack;
    const struct tensor_view *tensors;
    struct layer *layer;
    attn_error *error; /* the first error of all functions */
};

/* Returns the tensor `name` + `ending` of the module in layer `index`, or NULL. Writes
 * its whole name, unless it would be longer than any that a table has. */
const struct safetensors_tensor *locator_find(const struct locator *locator, size_t index,
                                              const char *name, const char *ending,
                                              char ret_name[MATCH_NAME_SIZE]);

/* Sets the error ATTN_E_FORMAT, which says that the tensor is missing. */
void locator_refuse_missing(const struct locator *locator, const char *name);

/* Checks that a tensor, which may be NULL, is [rows, columns], and of a dtype that can be
 * read. `columns` is VECTOR for `rows` numbers. Errors: ATTN_E_SHAPE, ATTN_E_UNSUPPORTED,
 * which name the tensor. */
void locator_check(const struct locator *locator, const struct safetensors_tensor *tensor,
                   size_t rows, size_t columns);

/* Finds the tensors of all norms, for the kinds of norms that the layer has. Errors,
 * which name the tensor: ATTN_E_FORMAT, ATTN_E_SHAPE, ATTN_E_UNSUPPORTED. */
void locate_norms(const struct locator *locator);
