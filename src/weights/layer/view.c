/* SPDX-License-Identifier: Apache-2.0 */
/* view.c: searches sorted tensors, and checks a shape. */
#include "weights/layer/view.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

size_t tensor_view_lower(const struct tensor_view *view, const char *name) {
    size_t low = 0, high = view->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(view->tensors[middle].name + view->prefix_size, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct tensor_view tensor_view_make(const struct tensor_view *all, const char *prefix) {
    size_t first = tensor_view_lower(all, prefix), end = first, size = strlen(prefix);

    while (end < all->count && strncmp(all->tensors[end].name, prefix, size) == 0)
        end++;
    return (struct tensor_view){
        .tensors = all->tensors + first, .count = end - first, .prefix_size = size};
}

struct tensor_view tensor_view_of(const struct safetensors *file) {
    const struct safetensors_header *header = safetensors_get_header(file);
    return (struct tensor_view){.tensors = header->tensors, .count = header->num_tensors};
}

const struct safetensors_tensor *tensor_view_find(const struct tensor_view *view,
                                                  const char *name) {
    size_t i = name == NULL ? view->count : tensor_view_lower(view, name);
    if (i == view->count || strcmp(view->tensors[i].name + view->prefix_size, name) != 0)
        return NULL;
    return &view->tensors[i];
}

const struct safetensors_tensor *tensor_view_find_numbered(const struct tensor_view *view,
                                                           const char *name,
                                                           size_t number) {
    const char *last = NULL;
    char numbered[256];

    for (const char *at = name; (at = strstr(at, "0.")) != NULL; at++) {
        if (at == name || at[-1] == '.')
            last = at;
    }
    if (last == NULL)
        return NULL;
    int size = snprintf(numbered, sizeof numbered, "%.*s%zu%s", (int)(last - name), name,
                        number, last + 1);
    return size > 0 && (size_t)size < sizeof numbered ? tensor_view_find(view, numbered)
                                                      : NULL;
}

const struct safetensors_tensor *
tensor_view_find_head(const struct tensor_view *of_heads,
                      const struct safetensors_tensor *first, size_t head) {
    if (first == NULL || of_heads == NULL)
        return first;
    return tensor_view_find_numbered(of_heads, first->name + of_heads->prefix_size, head);
}

/* Writes "[2,3]", with "any" for TENSOR_ANY when `expected`; a long shape is cut. */
static void print_dims(const size_t *shape, size_t rank, bool expected,
                       char ret_text[SHAPE_TEXT_SIZE]) {
    size_t used = (size_t)snprintf(ret_text, SHAPE_TEXT_SIZE, "[");

    for (size_t i = 0; i < rank && used < SHAPE_TEXT_SIZE; i++) {
        char size[24] = "any";
        if (!expected || shape[i] != TENSOR_ANY)
            snprintf(size, sizeof size, "%zu", shape[i]);
        used += (size_t)snprintf(ret_text + used, SHAPE_TEXT_SIZE - used, "%s%s",
                                 i == 0 ? "" : ",", size);
    }
    if (used < SHAPE_TEXT_SIZE)
        snprintf(ret_text + used, SHAPE_TEXT_SIZE - used, "]");
}

void tensor_print_shape(const struct safetensors_tensor *tensor,
                        char ret_text[SHAPE_TEXT_SIZE]) {
    print_dims(tensor->shape, tensor->rank, false, ret_text);
}

static bool is_size(size_t size, size_t expected) {
    return expected == TENSOR_ANY || size == expected;
}

void tensor_fit(const struct safetensors_tensor *tensor, size_t *rows, size_t *columns,
                const char *reason, attn_error *error) {
    const size_t expected[] = {*rows, columns != NULL ? *columns : TENSOR_ANY};
    size_t rank = columns == NULL ? 1 : 2;
    if (tensor == NULL || error->status != ATTN_OK)
        return;

    const size_t *shape = tensor->shape;
    bool filled = tensor->elements > 0, matrix = rank == 2 && tensor->rank == 2;
    if (filled && tensor->rank == rank && is_size(shape[0], expected[0]) &&
        is_size(shape[rank - 1], expected[rank - 1])) {
        *rows = shape[0];
        if (columns != NULL)
            *columns = shape[1];
        return;
    }

    bool turned = filled && matrix &&
                  (expected[0] != TENSOR_ANY || expected[1] != TENSOR_ANY) &&
                  is_size(shape[1], expected[0]) && is_size(shape[0], expected[1]);
    char want[SHAPE_TEXT_SIZE], got[SHAPE_TEXT_SIZE];
    print_dims(expected, rank, true, want);
    tensor_print_shape(tensor, got);
    if (tensor->rank == rank && !filled)
        reason = "it must not be empty";
    error_set(error, ATTN_E_SHAPE, "tensor '%.80s' has shape %s, expected %s: %s%s",
              tensor->name, got, want, reason, turned ? "; is it transposed?" : "");
}
