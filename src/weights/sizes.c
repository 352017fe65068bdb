/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/sizes.h"

#include "base/error.h"
#include "base/size.h"

#include <stdio.h>

#define ANY        0        /* a size that the tensor is free to choose, except 0 */
#define NO_COLUMNS SIZE_MAX /* a vector is expected */

struct sizing {
    const struct layout *layout;
    const struct tensor_view *view;
    attn_error *ret_error;
    struct layer_sizes sizes;
};

/* Finds a tensor by its name in the layout, which may be NULL. */
static const struct safetensors_tensor *find(const struct sizing *sizing,
                                             const char *name) {
    return name == NULL ? NULL : tensor_view_find(sizing->view, name);
}

/* Writes "[2,3]", with "any" for ANY when `expected`; a long shape is cut. */
static void print_shape(const size_t *shape, size_t rank, bool expected, char *ret_text,
                        size_t text_size) {
    size_t used = (size_t)snprintf(ret_text, text_size, "[");
    for (size_t i = 0; i < rank && used < text_size; i++) {
        const char *comma = i == 0 ? "" : ",";
        if (expected && shape[i] == ANY)
            used += (size_t)snprintf(ret_text + used, text_size - used, "%sany", comma);
        else
            used += (size_t)snprintf(ret_text + used, text_size - used, "%s%zu", comma,
                                     shape[i]);
    }
    if (used < text_size)
        snprintf(ret_text + used, text_size - used, "]");
}

/* Checks that a tensor is [rows, columns], or [rows] when columns is NO_COLUMNS. `why`
 * says where the expectation comes from. */
static attn_status check_shape(const struct sizing *sizing,
                               const struct safetensors_tensor *tensor, size_t rows,
                               size_t columns, const char *why) {
    const size_t expected[] = {rows, columns};
    size_t rank = columns == NO_COLUMNS ? 1 : 2;
    bool fits = tensor->rank == rank && tensor->elements > 0;
    for (size_t i = 0; fits && i < rank; i++)
        fits = expected[i] == ANY || tensor->shape[i] == expected[i];
    if (fits)
        return ATTN_OK;
    char want[64], got[64];
    print_shape(expected, rank, true, want, sizeof want);
    print_shape(tensor->shape, tensor->rank, false, got, sizeof got);
    return error_set(
        sizing->ret_error, ATTN_E_SHAPE, "tensor '%.80s' has shape %s, expected %s: %s",
        tensor->name, got, want,
        tensor->rank == rank && tensor->elements == 0 ? "it must not be empty" : why);
}

/* in_proj_weight: rows of query, key and value in one tensor. */
static attn_status size_packed(struct sizing *sizing, size_t which,
                               const struct safetensors_tensor *weight) {
    struct projection *projection = &sizing->sizes.projections[which];
    attn_status status = check_shape(sizing, weight, ANY, ANY, "it is a matrix");
    if (status != ATTN_OK)
        return status;
    size_t embed = weight->shape[1], rows;
    if (!size_mul(embed, 3, &rows))
        return error_set(sizing->ret_error, ATTN_E_OVERFLOW,
                         "tensor '%.80s' is too large", weight->name);
    status = check_shape(sizing, weight, rows, embed,
                         "it packs square query, key and value weights");
    if (status != ATTN_OK)
        return status;
    projection->weight = weight;
    projection->first_row = which * embed;
    projection->in_size = embed;
    sizing->sizes.hidden = embed;
    return ATTN_OK;
}

/* A weight of all heads together; the query's says what H*D is. */
static attn_status size_whole(struct sizing *sizing, size_t which,
                              const struct safetensors_tensor *weight) {
    struct projection *projection = &sizing->sizes.projections[which];
    size_t rows = which == LINEAR_QUERY ? ANY : sizing->sizes.hidden;
    attn_status status = check_shape(
        sizing, weight, rows, ANY,
        "queries, keys and values must have the same number of rows, since all "
        "heads have one size");
    if (status != ATTN_OK)
        return status;
    projection->weight = weight;
    projection->in_size = weight->shape[1];
    sizing->sizes.hidden = weight->shape[0];
    return ATTN_OK;
}

/* Weights of each head, perhaps on top of one weight of all heads (stage, or NULL). */
static attn_status size_heads(struct sizing *sizing, size_t which,
                              const struct safetensors_tensor *stage) {
    struct projection *projection = &sizing->sizes.projections[which];
    const struct linear_names *names =
        &sizing->layout->linears[LINEAR_HEAD_QUERY + which];
    size_t head_size = which == LINEAR_QUERY ? ANY : sizing->sizes.info.head_size;
    size_t columns = ANY;
    attn_status status = ATTN_OK;
    if (stage != NULL) {
        status = check_shape(sizing, stage, ANY, ANY, "it is a matrix");
        if (status != ATTN_OK)
            return status;
        columns = stage->shape[0];
    }
    projection->weight = stage;
    projection->head_bias = tensor_view_find_head(sizing->view, names->bias, 0) != NULL;
    for (size_t head = 0; head < sizing->sizes.info.num_heads; head++) {
        const struct safetensors_tensor *weight =
            tensor_view_find_head(sizing->view, names->weight, head);
        const struct safetensors_tensor *bias =
            tensor_view_find_head(sizing->view, names->bias, head);
        status = check_shape(sizing, weight, head_size, columns,
                             "all heads have one size for queries, keys and values");
        if (status != ATTN_OK)
            return status;
        head_size = weight->shape[0];
        columns = weight->shape[1];
        if ((bias != NULL) != projection->head_bias)
            return error_set(sizing->ret_error, ATTN_E_FORMAT,
                             "tensor '%.80s' %s a bias, unlike that of head 0",
                             weight->name, bias != NULL ? "has" : "lacks");
        if (bias != NULL) {
            status = check_shape(sizing, bias, head_size, NO_COLUMNS,
                                 "one number for each row of the head's weight");
            if (status != ATTN_OK)
                return status;
        }
    }
    projection->in_size = stage != NULL ? stage->shape[1] : columns;
    sizing->sizes.info.head_size = head_size;
    if (!size_mul(sizing->sizes.info.num_heads, head_size, &sizing->sizes.hidden))
        return error_set(sizing->ret_error, ATTN_E_OVERFLOW, "the heads are too large");
    return ATTN_OK;
}

/* The bias of a whole or packed weight, or of the first stage. */
static attn_status size_bias(struct sizing *sizing, size_t which) {
    struct projection *projection = &sizing->sizes.projections[which];
    const struct linear_names *linears = sizing->layout->linears;
    projection->bias = find(sizing, linears[which].bias);
    if (projection->bias != NULL)
        return check_shape(sizing, projection->bias, projection->weight->shape[0],
                           NO_COLUMNS, "one number for each row of the weight");
    projection->bias = find(sizing, linears[LINEAR_PACKED].bias);
    if (projection->bias == NULL)
        return ATTN_OK;
    size_t rows;
    if (!size_mul(sizing->sizes.hidden, 3, &rows))
        return error_set(sizing->ret_error, ATTN_E_OVERFLOW,
                         "tensor '%.80s' is too large", projection->bias->name);
    projection->first_bias_row = which * sizing->sizes.hidden;
    return check_shape(sizing, projection->bias, rows, NO_COLUMNS,
                       "one number for each row of query, key and value");
}

static attn_status size_projection(struct sizing *sizing, size_t which) {
    const struct linear_names *linears = sizing->layout->linears;
    const struct safetensors_tensor *packed = find(sizing, linears[LINEAR_PACKED].weight);
    const struct safetensors_tensor *whole = find(sizing, linears[which].weight);
    attn_status status;
    if (packed != NULL)
        status = size_packed(sizing, which, packed);
    else if (linears[LINEAR_HEAD_QUERY].weight != NULL)
        status = size_heads(sizing, which, whole);
    else
        status = size_whole(sizing, which, whole);
    return status != ATTN_OK ? status : size_bias(sizing, which);
}

/* Settles H where the tensors can be counted, before the projections are sized. */
static attn_status count_heads(struct sizing *sizing) {
    attn_model_info *info = &sizing->sizes.info;
    if (sizing->layout->linears[LINEAR_HEAD_QUERY].weight == NULL) {
        if (info->num_heads > 0)
            return ATTN_OK;
        return error_set(
            sizing->ret_error, ATTN_E_VALUE,
            "layout %s does not tell the number of heads: write num_heads=N after "
            "the file, as in --model NAME=FILE,num_heads=5, or \"num_heads\": "
            "\"5\" in its __metadata__",
            sizing->layout->name);
    }
    size_t counted;
    attn_status status =
        layout_count_heads(sizing->layout, sizing->view, &counted, sizing->ret_error);
    if (status != ATTN_OK)
        return status;
    if (info->num_heads > 0 && info->num_heads != counted)
        return error_set(sizing->ret_error, ATTN_E_VALUE,
                         "num_heads=%zu was given, but the file has tensors of %zu heads",
                         info->num_heads, counted);
    info->num_heads = counted;
    return ATTN_OK;
}

/* Divides the rows among the heads, where those are not counted. */
static attn_status divide_heads(struct sizing *sizing) {
    attn_model_info *info = &sizing->sizes.info;
    if (sizing->sizes.hidden % info->num_heads != 0)
        return error_set(
            sizing->ret_error, ATTN_E_VALUE,
            "num_heads=%zu does not divide the %zu rows of query, key and value",
            info->num_heads, sizing->sizes.hidden);
    info->head_size = sizing->sizes.hidden / info->num_heads;
    return ATTN_OK;
}

static attn_status size_output(struct sizing *sizing) {
    const struct linear_names *names = &sizing->layout->linears[LINEAR_OUTPUT];
    attn_model_info *info = &sizing->sizes.info;
    sizing->sizes.output_weight = find(sizing, names->weight);
    if (sizing->sizes.output_weight == NULL) {
        info->out_size = sizing->sizes.hidden;
        return ATTN_OK;
    }
    attn_status status =
        check_shape(sizing, sizing->sizes.output_weight, ANY, sizing->sizes.hidden,
                    "it takes the concatenated heads");
    if (status != ATTN_OK)
        return status;
    info->output_projection = true;
    info->out_size = sizing->sizes.output_weight->shape[0];
    sizing->sizes.output_bias = find(sizing, names->bias);
    if (sizing->sizes.output_bias == NULL)
        return ATTN_OK;
    info->output_bias = true;
    return check_shape(sizing, sizing->sizes.output_bias, info->out_size, NO_COLUMNS,
                       "one number for each row of the weight");
}

static attn_status size_additive(struct sizing *sizing) {
    static const char *const names[] = {LAYOUT_ADDITIVE_QUERY, LAYOUT_ADDITIVE_KEY,
                                        LAYOUT_ADDITIVE_SCORE};
    attn_model_info *info = &sizing->sizes.info;
    const struct safetensors_tensor *tensors[3];
    const char *missing = NULL;
    size_t present = 0;
    for (size_t i = 0; i < 3; i++) {
        tensors[i] = find(sizing, names[i]);
        if (tensors[i] != NULL)
            present++;
        else
            missing = names[i];
    }
    if (present == 0)
        return ATTN_OK;
    if (missing != NULL)
        return error_set(
            sizing->ret_error, ATTN_E_FORMAT,
            "tensor '%.*s%s' is missing: additive scoring takes " LAYOUT_ADDITIVE_QUERY
            ", " LAYOUT_ADDITIVE_KEY " and " LAYOUT_ADDITIVE_SCORE,
            (int)sizing->view->prefix_size, sizing->view->tensors[0].name, missing);
    attn_status status = check_shape(sizing, tensors[0], ANY, info->head_size,
                                     "it takes the query of one head");
    if (status != ATTN_OK)
        return status;
    size_t width = tensors[0]->shape[0];
    status = check_shape(sizing, tensors[1], width, info->head_size,
                         "as wide as " LAYOUT_ADDITIVE_QUERY);
    if (status != ATTN_OK)
        return status;
    /* a Linear of one output has [1, A]; a plain vector has [A] */
    if (tensors[2]->rank == 1)
        status =
            check_shape(sizing, tensors[2], width, NO_COLUMNS, "one number per score");
    else
        status = check_shape(sizing, tensors[2], 1, width, "one number per score");
    if (status != ATTN_OK)
        return status;
    info->scoring = ATTN_ADDITIVE;
    info->additive_size = width;
    sizing->sizes.additive_query = tensors[0];
    sizing->sizes.additive_key = tensors[1];
    sizing->sizes.additive_score = tensors[2];
    return ATTN_OK;
}

static bool has_bias(const struct projection *projection) {
    return projection->bias != NULL || projection->head_bias;
}

attn_status layer_sizes_find(const struct layout *layout, const struct tensor_view *view,
                             const attn_model_info *given, struct layer_sizes *ret_sizes,
                             attn_error *ret_error) {
    struct sizing sizing = {.layout = layout, .view = view, .ret_error = ret_error};
    attn_model_info *info = &sizing.sizes.info;
    *info = *given;
    info->layout = layout->name;
    attn_status status = count_heads(&sizing);
    for (size_t which = 0; status == ATTN_OK && which < 3; which++)
        status = size_projection(&sizing, which);
    if (status == ATTN_OK)
        status = divide_heads(&sizing);
    if (status == ATTN_OK)
        status = size_output(&sizing);
    if (status == ATTN_OK)
        status = size_additive(&sizing);
    if (status != ATTN_OK)
        return status;
    const struct projection *projections = sizing.sizes.projections;
    info->query_size = projections[LINEAR_QUERY].in_size;
    info->key_size = projections[LINEAR_KEY].in_size;
    info->value_size = projections[LINEAR_VALUE].in_size;
    info->query_bias = has_bias(&projections[LINEAR_QUERY]);
    info->key_bias = has_bias(&projections[LINEAR_KEY]);
    info->value_bias = has_bias(&projections[LINEAR_VALUE]);
    *ret_sizes = sizing.sizes;
    return ATTN_OK;
}
