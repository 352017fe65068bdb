/* SPDX-License-Identifier: Apache-2.0 */
/* view.c: searches sorted tensors. */
#include "weights/layer/view.h"

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

struct tensor_view tensor_view_make(const struct safetensors_tensor *tensors,
                                    size_t count, const char *prefix) {
    const struct tensor_view all = {.tensors = tensors, .count = count};
    size_t first = tensor_view_lower(&all, prefix), end = first, size = strlen(prefix);

    while (end < count && strncmp(tensors[end].name, prefix, size) == 0)
        end++;
    return (struct tensor_view){tensors + first, end - first, size};
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
