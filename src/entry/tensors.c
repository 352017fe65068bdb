/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c: lists the tensors of linears, sinks and norms by head. */
#include "entry/tensors.h"

#include "wire/json/write.h"

#include <stdio.h>

/* The parts that heads have of one array: see struct layer_linear. */
struct parts {
    size_t heads, rows, first, group_heads, group_rows;
    bool transposed;
    const struct tensor_view *of_heads; /* a tensor for each; NULL: one for all */
};

static void print_parts(const char *array, const struct safetensors_tensor *tensor,
                        const struct parts *parts, struct buf *text) {
    buf_append_text(text, text->data[text->size - 1] == '[' ? "" : ",");
    buf_append_format(text, "{\"array\":\"%s\",\"name\":", array);
    wire_json_add_string(text, tensor->name);
    buf_append_text(text, ",\"file\":");
    wire_json_add_string(text, safetensors_get_path(tensor->file));
    buf_append_text(text, ",\"shape\":[");
    for (size_t axis = 0; axis < tensor->rank; axis++)
        buf_append_format(text, axis > 0 ? ",%zu" : "%zu", tensor->shape[axis]);
    buf_append_format(text,
                      "],\"dtype\":\"%s\",\"transposed\":%s,\"heads\":%zu,\"rows\":%zu,"
                      "\"first\":%zu,\"group_heads\":%zu,\"group_rows\":%zu}",
                      tensor->dtype->name, parts->transposed ? "true" : "false",
                      parts->heads, parts->rows, parts->first, parts->group_heads,
                      parts->group_rows);
}

/* Adds the number of the head to the object that was written last. */
static void add_head_number(size_t head, struct buf *text) {
    text->size -= text->status == ATTN_OK;
    buf_append_format(text, ",\"head\":%zu}", head);
}

/* Prints the tensors of an array, which a file need not have. */
static void print_array(const char *array, const struct safetensors_tensor *tensor,
                        const struct parts *parts, struct buf *text) {
    struct parts one = *parts;

    if (tensor == NULL || text->status != ATTN_OK)
        return;
    if (parts->of_heads == NULL) {
        print_parts(array, tensor, parts, text);
        return;
    }
    one.heads = one.group_heads = 1;
    one.group_rows = one.rows;
    for (size_t head = 0; head < parts->heads; head++) {
        const struct safetensors_tensor *its =
            tensor_view_find_head(parts->of_heads, tensor, head);
        if (its == NULL)
            return;
        print_parts(array, its, &one, text);
        add_head_number(head, text);
    }
}

static void print_linear(const char *name, const struct layer_linear *linear,
                         struct buf *text) {
    struct parts parts = {linear->num_heads,   linear->head_rows,  linear->first_row,
                          linear->group_heads, linear->group_rows, linear->transposed,
                          linear->of_heads};
    char array[32];

    snprintf(array, sizeof array, "%s.weight", name);
    print_array(array, linear->weight, &parts, text);
    parts.first += linear->bias_rows;
    parts.transposed = false;
    snprintf(array, sizeof array, "%s.bias", name);
    print_array(array, linear->bias, &parts, text);
}

/* Parts of so many heads, one after the other. */
static struct parts parts_in_order(size_t heads, size_t rows) {
    return (struct parts){
        .heads = heads, .rows = rows, .group_heads = heads, .group_rows = heads * rows};
}

static void print_norm(const char *name, const struct layer_norm *norm, size_t heads,
                       size_t size, struct buf *text) {
    struct parts parts = parts_in_order(heads, size);
    char array[32];

    parts.of_heads = norm->of_heads;
    snprintf(array, sizeof array, "%s.weight", name);
    print_array(array, norm->weight, &parts, text);
    snprintf(array, sizeof array, "%s.bias", name);
    print_array(array, norm->bias, &parts, text);
}

void entry_print_tensors(const struct layer *layer, struct buf *text) {
    static const char *const names[LAYER_NUM_LINEARS] = {[ATTN_QUERY] = "query",
                                                         [ATTN_KEY] = "key",
                                                         [ATTN_VALUE] = "value",
                                                         [ATTN_GATE] = "gate"};
    const attn_model_info *info = &layer->info;
    size_t kv_heads = info->num_kv_heads > 0 ? info->num_kv_heads : info->num_heads;
    size_t size = info->width.score > 0 ? info->width.score : info->width.head;
    const struct layer_linear *output = &layer->linears[ATTN_OUTPUT];
    struct parts parts = parts_in_order(info->num_heads, info->width.head);

    buf_append_text(text, "[");
    for (size_t i = 0; i < LAYER_NUM_LINEARS; i++) {
        if (names[i] != NULL)
            print_linear(names[i], &layer->linears[i], text);
    }
    parts.transposed = output->transposed;
    print_array("output.weight", output->weight, &parts, text);
    parts = parts_in_order(info->num_heads, 1);
    print_array("sinks", layer->sinks, &parts, text);
    if (info->head_norm.per_head) {
        print_norm("query_norm", &layer->query_norm, info->num_heads, size, text);
        print_norm("key_norm", &layer->key_norm, kv_heads, size, text);
    }
    buf_append_text(text, "]");
}
