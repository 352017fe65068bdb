/* SPDX-License-Identifier: Apache-2.0 */
/* layout.c: matches a file with the table of layouts. */
#include "weights/layout.h"

#include "base/error.h"
#include "weights/layout_misfit.h"

#include <string.h>

/* Refuses tensors that change the results in a way that attnd does not compute. */
static attn_status check_refused(const struct layout *layout,
                                 const struct tensor_view *view, attn_error *ret_error) {
    for (size_t i = 0; i < sizeof layout->refused / sizeof layout->refused[0]; i++) {
        if (layout->refused[i] == NULL)
            continue;
        const struct safetensors_tensor *tensor =
            tensor_view_find(view, layout->refused[i]);
        if (tensor != NULL)
            return error_set(ret_error, ATTN_E_UNSUPPORTED,
                             "tensor '%.80s' adds a learned row to the keys or values "
                             "(torch's add_bias_kv), which attnd does not compute",
                             tensor->name);
    }
    return ATTN_OK;
}

attn_status layout_recognise(const struct safetensors *file, const char *prefix,
                             const char *name, const struct layout **ret_layout,
                             struct tensor_view *ret_view, attn_error *ret_error) {
    struct tensor_view view = tensor_view_make(file, prefix);
    const struct layout *found = NULL;

    for (size_t i = 0; i < LAYOUT_TABLE_SIZE; i++) {
        if (!layout_is_called(&layout_table[i], name) ||
            !layout_fits(&layout_table[i], &view))
            continue;
        if (found != NULL)
            return layout_refuse_ambiguous(found, &layout_table[i], ret_error);
        found = &layout_table[i];
    }
    if (found == NULL)
        return layout_refuse_unrecognised(file, &view, prefix, name, ret_error);

    attn_status status = check_refused(found, &view, ret_error);
    if (status != ATTN_OK)
        return status;
    for (size_t i = 0; i < view.count && status == ATTN_OK; i++) {
        const struct safetensors_tensor *tensor = &view.tensors[i];
        if (layout_uses(found, tensor->name + view.prefix_size))
            status = safetensors_check_dtype(tensor, ret_error);
        else if (name == NULL && !layout_knows(found, tensor->name + view.prefix_size))
            status = error_set(ret_error, ATTN_E_FORMAT,
                               "tensor '%.80s' is not part of layout %s and might change "
                               "the results; remove it, or write layout=%s to ignore it",
                               tensor->name, found->name, found->name);
    }
    if (status != ATTN_OK)
        return status;

    *ret_layout = found;
    *ret_view = view;
    return ATTN_OK;
}

attn_status layout_count_heads(const struct layout *layout,
                               const struct tensor_view *view, size_t *ret_num_heads,
                               attn_error *ret_error) {
    size_t num_heads = 0;

    /* The highest number decides; then there must be no gap. */
    for (size_t i = 0; i < view->count; i++) {
        const char *name = view->tensors[i].name + view->prefix_size;
        for (size_t linear = LINEAR_HEAD_QUERY; linear <= LINEAR_HEAD_VALUE; linear++) {
            size_t head;
            if ((layout_name_matches(name, layout->linears[linear].weight, &head) ||
                 layout_name_matches(name, layout->linears[linear].bias, &head)) &&
                head >= num_heads)
                num_heads = head + 1;
        }
    }

    for (size_t head = 0; head < num_heads; head++) {
        for (size_t linear = LINEAR_HEAD_QUERY; linear <= LINEAR_HEAD_VALUE; linear++) {
            char name[LAYOUT_NAME_SIZE];
            layout_head_name(layout->linears[linear].weight, head, name);
            if (tensor_view_find(view, name) == NULL)
                return error_set(ret_error, ATTN_E_FORMAT,
                                 "tensor '%.*s%s' is missing, but there are tensors of "
                                 "head %zu; number the heads from 0 without gaps",
                                 (int)view->prefix_size, view->tensors[0].name, name,
                                 num_heads - 1);
        }
    }

    *ret_num_heads = num_heads;
    return ATTN_OK;
}
