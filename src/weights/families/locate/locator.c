/* SPDX-License-Identifier: Apache-2.0 */
/* locator.c: finds a tensor, and checks its shape. */
#include "weights/families/locate/locator.h"

#include "base/error.h"
#include "weights/families/fp8.h"

#include <stdio.h>

const struct safetensors_tensor *locator_find(const struct locator *locator, size_t index,
                                              const char *name, const char *ending,
                                              char ret_name[MATCH_NAME_SIZE]) {
    if (!match_name(locator->stack, index, locator->stack->stack->module, name, ending,
                    ret_name))
        return NULL;
    return tensor_view_find(locator->tensors, ret_name);
}

void locator_refuse_missing(const struct locator *locator, const char *name) {
    error_keep(locator->error, ATTN_E_FORMAT,
               "tensor '%.120s' is missing; family %s has it", name, locator->type);
}

void locator_check(const struct locator *locator, const struct safetensors_tensor *tensor,
                   size_t rows, size_t columns) {
    if (tensor == NULL)
        return;
    const struct layer *layer = locator->layer;
    char values[64] = "", reason[200];

    if (tensor->dtype->to_float == NULL)
        fp8_refuse(locator->tensors, tensor, locator->error);
    if (layer->info.width.head != layer->info.width.score)
        snprintf(values, sizeof values, "values of size %zu, ", layer->info.width.head);
    snprintf(reason, sizeof reason,
             "config.json means %zu heads, %zu key heads and size %zu, %s%zu wide",
             layer->info.num_heads, layer->info.num_kv_heads, layer->info.width.score,
             values, locator->stack->width);
    tensor_fit(tensor, &rows, columns == VECTOR ? NULL : &columns, reason,
               locator->error);
}
