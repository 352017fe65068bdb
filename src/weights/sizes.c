/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.c: what each tensor of a layer must look like. The first tensor that is checked
 * determines sizes such as H*D; the others must agree with it. */
#include "weights/sizes.h"

#include "base/error.h"
#include "base/size.h"

#include <stdio.h>

#define ANY        0        /* any size but 0 */
#define NO_COLUMNS SIZE_MAX /* a vector is expected */

/* Returns the tensor called `name`, or NULL where there is none or `name` is NULL. */
static const struct safetensors_tensor *sizes_find(const struct layer_sizes *sizes,
                                                   const char *name) {
    return name == NULL ? NULL : tensor_view_find(&sizes->view, name);
}

/* Writes "[2,3]", with "any" for ANY when `expected`; a long shape is cut. */
static void format_shape(const size_t *shape, size_t rank, bool expected, char *ret_text,
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

/* Checks that a tensor is [rows, columns], or [rows] when columns is NO_COLUMNS. In the
 * error, `reason` explains why it must have that shape. */
static attn_status check_shape(const struct layer_sizes *sizes,
                               const struct safetensors_tensor *tensor, size_t rows,
                               size_t columns, const char *reason) {
    const size_t expected[] = {rows, columns};
    size_t rank = columns == NO_COLUMNS ? 1 : 2;
    bool fits = tensor->rank == rank && tensor->elements > 0;

    for (size_t i = 0; fits && i < rank; i++)
        fits = expected[i] == ANY || tensor->shape[i] == expected[i];
    if (fits)
        return ATTN_OK;

    bool turned = rank == 2 && tensor->rank == 2 && (rows != ANY || columns != ANY) &&
                  (rows == ANY || tensor->shape[1] == rows) &&
                  (columns == ANY || tensor->shape[0] == columns);
    char want[64], got[64];
    format_shape(expected, rank, true, want, sizeof want);
    format_shape(tensor->shape, tensor->rank, false, got, sizeof got);
    if (tensor->rank == rank && tensor->elements == 0)
        reason = "it must not be empty";
    return error_set(sizes->ret_error, ATTN_E_SHAPE,
                     "tensor '%.80s' has shape %s, expected %s: %s%s", tensor->name, got,
                     want, reason,
                     turned && tensor->elements > 0 ? "; is it transposed?" : "");
}

/* Sizes in_proj_weight, which has the rows of query, key and value in one tensor. */
static attn_status size_packed(struct layer_sizes *sizes, size_t which,
                               const struct safetensors_tensor *weight) {
    struct projection *projection = &sizes->projections[which];
    attn_status status = check_shape(sizes, weight, ANY, ANY, "it is a matrix");
    if (status != ATTN_OK)
        return status;

    size_t embed = weight->shape[1], rows;
    if (embed % 3 == 0 && embed / 3 == weight->shape[0]) /* transposed */
        embed = weight->shape[0];
    if (!size_mul(embed, 3, &rows))
        return error_set(sizes->ret_error, ATTN_E_OVERFLOW, "tensor '%.80s' is too large",
                         weight->name);
    status = check_shape(sizes, weight, rows, embed,
                         "it packs square query, key and value weights");
    if (status != ATTN_OK)
        return status;

    projection->weight = weight;
    projection->first_row = which * embed;
    projection->in_size = embed;
    sizes->hidden = embed;
    return ATTN_OK;
}

/* Sizes one weight for all heads; the rows of the query's weight determine H*D. */
static attn_status size_all_heads(struct layer_sizes *sizes, size_t which,
                                  const struct safetensors_tensor *weight) {
    struct projection *projection = &sizes->projections[which];
    size_t rows = which == LINEAR_QUERY ? ANY : sizes->hidden;
    size_t heads = sizes->info.num_heads, size = heads > 0 ? rows / heads : 0;
    size_t groups = size > 0 && weight->rank == 2 ? weight->shape[0] / size : 0;
    if (groups > 0 && groups < heads && heads % groups == 0 &&
        weight->shape[0] == groups * size)
        return error_set(
            sizes->ret_error, ATTN_E_UNSUPPORTED,
            "tensor '%.80s' has %zu of %zu heads: grouped keys are served from Hugging "
            "Face folders; here repeat the heads of keys, values and biases, as by "
            "np.repeat(w.reshape(%zu, %zu, *w.shape[1:]), %zu, 0).reshape(-1, "
            "*w.shape[1:])",
            weight->name, groups, heads, groups, size, heads / groups);
    attn_status status = check_shape(
        sizes, weight, rows, ANY,
        "the weights of query, key and value must have the same number of rows, "
        "since all heads have the same size");
    if (status != ATTN_OK)
        return status;

    projection->weight = weight;
    projection->in_size = weight->shape[1];
    sizes->hidden = weight->shape[0];
    return ATTN_OK;
}

/* Checks weight and bias of one head. *head_size and *columns may be ANY; they become the
 * sizes of this head. */
static attn_status size_head(struct layer_sizes *sizes, size_t which, size_t head,
                             size_t *head_size, size_t *columns) {
    const struct linear_names *names = &sizes->layout->linears[LINEAR_HEAD_QUERY + which];
    const struct safetensors_tensor *weight =
        tensor_view_find_head(&sizes->view, names->weight, head);
    const struct safetensors_tensor *bias =
        tensor_view_find_head(&sizes->view, names->bias, head);
    bool head_bias = sizes->projections[which].head_bias;

    attn_status status =
        check_shape(sizes, weight, *head_size, *columns,
                    "all heads must have the same size for queries, keys and values");
    if (status != ATTN_OK)
        return status;
    *head_size = weight->shape[0];
    *columns = weight->shape[1];

    if ((bias != NULL) != head_bias)
        return error_set(sizes->ret_error, ATTN_E_FORMAT,
                         "tensor '%.80s' %s a bias, unlike that of head 0", weight->name,
                         bias != NULL ? "has" : "lacks");
    if (bias == NULL)
        return ATTN_OK;
    return check_shape(sizes, bias, *head_size, NO_COLUMNS,
                       "one number for each row of the head's weight");
}

/* Sizes the weights of each head. They may follow one weight of all heads: `stage`, or
 * NULL. */
static attn_status size_heads(struct layer_sizes *sizes, size_t which,
                              const struct safetensors_tensor *stage) {
    struct projection *projection = &sizes->projections[which];
    const struct linear_names *names = &sizes->layout->linears[LINEAR_HEAD_QUERY + which];
    size_t head_size = which == LINEAR_QUERY ? ANY : sizes->info.width.head;
    size_t columns = ANY;
    attn_status status = ATTN_OK;

    if (stage != NULL) {
        status = check_shape(sizes, stage, ANY, ANY, "it is a matrix");
        if (status != ATTN_OK)
            return status;
        columns = stage->shape[0];
    }

    projection->weight = stage;
    projection->head_bias = tensor_view_find_head(&sizes->view, names->bias, 0) != NULL;
    for (size_t head = 0; head < sizes->info.num_heads; head++) {
        status = size_head(sizes, which, head, &head_size, &columns);
        if (status != ATTN_OK)
            return status;
    }

    projection->in_size = stage != NULL ? stage->shape[1] : columns;
    sizes->info.width.head = head_size;
    if (!size_mul(sizes->info.num_heads, head_size, &sizes->hidden))
        return error_set(sizes->ret_error, ATTN_E_OVERFLOW, "the heads are too large");
    return ATTN_OK;
}

/* Checks the bias of all heads together: of one weight, of a packed weight, or of the
 * stage. */
static attn_status size_bias(struct layer_sizes *sizes, size_t which) {
    struct projection *projection = &sizes->projections[which];
    const struct linear_names *linears = sizes->layout->linears;

    projection->bias = sizes_find(sizes, linears[which].bias);
    if (projection->bias != NULL)
        return check_shape(sizes, projection->bias, projection->weight->shape[0],
                           NO_COLUMNS, "one number for each row of the weight");

    projection->bias = sizes_find(sizes, linears[LINEAR_PACKED].bias);
    if (projection->bias == NULL)
        return ATTN_OK;

    size_t rows;
    if (!size_mul(sizes->hidden, 3, &rows))
        return error_set(sizes->ret_error, ATTN_E_OVERFLOW, "tensor '%.80s' is too large",
                         projection->bias->name);
    projection->first_bias_row = which * sizes->hidden;
    return check_shape(sizes, projection->bias, rows, NO_COLUMNS,
                       "one number for each row of query, key and value");
}

static attn_status size_projection(struct layer_sizes *sizes, size_t which) {
    const struct linear_names *linears = sizes->layout->linears;
    const struct safetensors_tensor *packed =
        sizes_find(sizes, linears[LINEAR_PACKED].weight);
    const struct safetensors_tensor *weight = sizes_find(sizes, linears[which].weight);
    attn_status status;

    if (packed != NULL)
        status = size_packed(sizes, which, packed);
    else if (linears[LINEAR_HEAD_QUERY].weight != NULL)
        status = size_heads(sizes, which, weight);
    else
        status = size_all_heads(sizes, which, weight);
    return status != ATTN_OK ? status : size_bias(sizes, which);
}

/* Determines H before the projections are sized: counted, where each head has tensors of
 * its own, or as `info` gives it. */
static attn_status find_num_heads(struct layer_sizes *sizes) {
    attn_model_info *info = &sizes->info;

    if (sizes->layout->linears[LINEAR_HEAD_QUERY].weight == NULL) {
        if (info->num_heads > 0)
            return ATTN_OK;
        return error_set(sizes->ret_error, ATTN_E_VALUE,
                         "layout %s does not determine the number of heads; "
                         "write num_heads=N after the file, "
                         "as in --model NAME=FILE,num_heads=5, "
                         "or \"num_heads\": \"5\" in its __metadata__",
                         sizes->layout->name);
    }

    size_t counted;
    attn_status status =
        layout_count_heads(sizes->layout, &sizes->view, &counted, sizes->ret_error);
    if (status != ATTN_OK)
        return status;
    if (info->num_heads > 0 && info->num_heads != counted)
        return error_set(
            sizes->ret_error, ATTN_E_VALUE,
            "num_heads=%zu was given, but the file has tensors of %zu head%s",
            info->num_heads, counted, plural_of(counted));

    info->num_heads = counted;
    return ATTN_OK;
}

/* Determines D: the rows of each head. */
static attn_status divide_heads(struct layer_sizes *sizes) {
    attn_model_info *info = &sizes->info;
    char divisors[DIVISORS_TEXT_SIZE];

    if (sizes->hidden % info->num_heads != 0) {
        divisors_print(sizes->hidden, divisors);
        return error_set(sizes->ret_error, ATTN_E_VALUE,
                         "num_heads=%zu does not divide the %zu rows "
                         "of query, key and value; %s do",
                         info->num_heads, sizes->hidden, divisors);
    }

    info->width.head = sizes->hidden / info->num_heads;
    return ATTN_OK;
}

static attn_status size_output(struct layer_sizes *sizes) {
    const struct linear_names *names = &sizes->layout->linears[LINEAR_OUTPUT];
    attn_model_info *info = &sizes->info;

    sizes->others[0] = sizes_find(sizes, names->weight);
    if (sizes->others[0] == NULL) {
        info->width.out = sizes->hidden;
        return ATTN_OK;
    }

    attn_status status = check_shape(sizes, sizes->others[0], ANY, sizes->hidden,
                                     "its input is the concatenated heads");
    if (status != ATTN_OK)
        return status;
    info->linears[ATTN_OUTPUT].weight = true;
    info->width.out = sizes->others[0]->shape[0];

    sizes->others[1] = sizes_find(sizes, names->bias);
    if (sizes->others[1] == NULL)
        return ATTN_OK;
    info->linears[ATTN_OUTPUT].bias = true;
    return check_shape(sizes, sizes->others[1], info->width.out, NO_COLUMNS,
                       "one number for each row of the weight");
}

/* Finds the three tensors of additive scoring. All are NULL where the file has none. */
static attn_status find_additive(struct layer_sizes *sizes,
                                 const struct safetensors_tensor *ret_tensors[3]) {
    static const char *const names[] = {LAYOUT_ADDITIVE_QUERY, LAYOUT_ADDITIVE_KEY,
                                        LAYOUT_ADDITIVE_SCORE};
    const char *missing = NULL;
    size_t present = 0;

    for (size_t i = 0; i < 3; i++) {
        ret_tensors[i] = sizes_find(sizes, names[i]);
        if (ret_tensors[i] != NULL)
            present++;
        else
            missing = names[i];
    }
    if (present == 0 || missing == NULL)
        return ATTN_OK;
    return error_set(
        sizes->ret_error, ATTN_E_FORMAT,
        "tensor '%.*s%s' is missing; additive scoring needs " LAYOUT_ADDITIVE_QUERY
        ", " LAYOUT_ADDITIVE_KEY " and " LAYOUT_ADDITIVE_SCORE,
        (int)sizes->view.prefix_size, sizes->view.tensors[0].name, missing);
}

static attn_status size_additive(struct layer_sizes *sizes) {
    attn_model_info *info = &sizes->info;
    const struct safetensors_tensor **tensors = sizes->others + 2;

    attn_status status = find_additive(sizes, tensors);
    if (status != ATTN_OK || tensors[0] == NULL)
        return status;

    status = check_shape(sizes, tensors[0], ANY, info->width.head,
                         "its input is the query of one head");
    if (status != ATTN_OK)
        return status;
    size_t width = tensors[0]->shape[0];
    status = check_shape(sizes, tensors[1], width, info->width.head,
                         "it must be as wide as " LAYOUT_ADDITIVE_QUERY);
    if (status != ATTN_OK)
        return status;

    /* a Linear of one output has [1, A]; a plain vector has [A] */
    if (tensors[2]->rank == 1)
        status = check_shape(sizes, tensors[2], width, NO_COLUMNS,
                             "one number for each row of " LAYOUT_ADDITIVE_QUERY);
    else
        status = check_shape(sizes, tensors[2], 1, width,
                             "one number for each row of " LAYOUT_ADDITIVE_QUERY);
    if (status != ATTN_OK)
        return status;

    info->score.kind = ATTN_ADDITIVE;
    info->width.additive = width;
    return ATTN_OK;
}

static bool projection_has_bias(const struct projection *projection) {
    return projection->bias != NULL || projection->head_bias;
}

attn_status layer_sizes_find(struct layer_sizes *sizes, attn_error *ret_error) {
    attn_model_info *info = &sizes->info;

    sizes->ret_error = ret_error;
    info->layout = sizes->layout->name;
    attn_status status = find_num_heads(sizes);
    for (size_t which = 0; status == ATTN_OK && which < 3; which++)
        status = size_projection(sizes, which);
    if (status == ATTN_OK)
        status = divide_heads(sizes);
    if (status == ATTN_OK)
        status = size_output(sizes);
    if (status == ATTN_OK)
        status = size_additive(sizes);

    const struct projection *projections = sizes->projections;
    info->width.query = projections[LINEAR_QUERY].in_size;
    info->width.key = projections[LINEAR_KEY].in_size;
    info->width.value = projections[LINEAR_VALUE].in_size;
    info->linears[ATTN_QUERY].bias = projection_has_bias(&projections[LINEAR_QUERY]);
    info->linears[ATTN_KEY].bias = projection_has_bias(&projections[LINEAR_KEY]);
    info->linears[ATTN_VALUE].bias = projection_has_bias(&projections[LINEAR_VALUE]);
    return status;
}
