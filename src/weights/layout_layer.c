/* SPDX-License-Identifier: Apache-2.0 */
/* layout_layer.c: what each tensor of a layout must look like. The first tensor that is
 * checked determines a size, such as H*D; the others must agree with it. */
#include "base/error.h"
#include "base/size.h"
#include "weights/layer/frequencies.h"
#include "weights/layer/make.h"
#include "weights/layout.h"

#include <string.h>

/* A layer whose tensors are searched. H heads have size D; M is the width between the
 * stages of a two-stage projection. */
struct sizer {
    const struct layout *layout;
    const struct tensor_view *view;
    struct layer *layer;
    size_t hidden;     /* H*D, once a weight tells it */
    size_t key_hidden; /* KV*D, once the weight of keys tells that heads share keys */
    attn_error *error; /* the first error of all functions */
};

/* Checks a matrix, [*rows, *columns], or the other way round where it is transposed. */
static void fit_matrix(const struct sizer *sizer, const struct safetensors_tensor *tensor,
                       bool transposed, size_t *rows, size_t *columns,
                       const char *reason) {
    tensor_fit(tensor, transposed ? columns : rows, transposed ? rows : columns, reason,
               sizer->error);
}

/* Finds weight [*rows, *columns] and bias [*rows] of a linear. */
static void fit_linear(const struct sizer *sizer, const struct linear_names *names,
                       size_t *rows, size_t *columns, const char *reason,
                       struct layer_linear *linear) {
    linear->weight = tensor_view_find(sizer->view, names->weight);
    linear->bias = tensor_view_find(sizer->view, names->bias);
    fit_matrix(sizer, linear->weight, linear->transposed, rows, columns, reason);
    tensor_fit(linear->bias, rows, NULL, "one number for each row of the weight",
               sizer->error);
}

/* --- heads that have tensors of their own --- */

/* Returns how many heads have tensors. The highest number decides; then there must be no
 * gap. */
static size_t count_numbered(const struct sizer *sizer) {
    const struct linear_names *names = &sizer->layout->linears[LINEAR_HEAD_QUERY];
    const struct tensor_view *view = sizer->view;
    size_t num_heads = 0, head;

    for (size_t i = 0; i < view->count * 3; i++) {
        const char *name = view->tensors[i / 3].name + view->prefix_size;
        if ((layout_name_matches(name, names[i % 3].weight, &head) ||
             layout_name_matches(name, names[i % 3].bias, &head)) &&
            head >= num_heads)
            num_heads = head + 1;
    }
    for (size_t i = 0; i < num_heads * 3 && sizer->error->status == ATTN_OK; i++) {
        const char *first = names[i % 3].weight;
        if (tensor_view_find_numbered(view, first, i / 3) == NULL)
            error_set(sizer->error, ATTN_E_FORMAT,
                      "tensor '%.*s" LAYOUT_HEADS "%zu%s' is missing, but there are "
                      "tensors of head %zu; number the heads from 0 without gaps",
                      (int)view->prefix_size, view->tensors[0].name, i / 3,
                      first + strlen(LAYOUT_HEADS "0"), num_heads - 1);
    }
    return num_heads;
}

/* Checks weight and bias of each head, which follow one weight of all heads: `stage`, or
 * NULL. */
static void fit_heads(struct sizer *sizer, size_t which,
                      const struct safetensors_tensor *stage) {
    const struct linear_names *names = &sizer->layout->linears[LINEAR_HEAD_QUERY + which];
    struct layer *layer = sizer->layer;
    struct layer_linear *linear = &layer->linears[which];
    size_t columns = TENSOR_ANY;

    tensor_fit(stage, &columns, &linear->in_size, "it is a matrix", sizer->error);
    linear->stage = stage;
    linear->of_heads = sizer->view;
    linear->weight = tensor_view_find(sizer->view, names->weight);
    linear->bias = tensor_view_find(sizer->view, names->bias);
    for (size_t head = 0; head < layer->info.num_heads && sizer->error->status == ATTN_OK;
         head++) {
        const struct safetensors_tensor *weight =
            tensor_view_find_numbered(sizer->view, names->weight, head);
        const struct safetensors_tensor *bias =
            tensor_view_find_numbered(sizer->view, names->bias, head);

        tensor_fit(weight, &layer->info.width.score, &columns,
                   "all heads must have the same size for queries, keys and values",
                   sizer->error);
        if ((bias != NULL) != (linear->bias != NULL))
            error_keep(sizer->error, ATTN_E_FORMAT,
                       "tensor '%.80s' %s a bias, unlike that of head 0", weight->name,
                       bias != NULL ? "has" : "lacks");
        tensor_fit(bias, &layer->info.width.score, NULL,
                   "one number for each row of the head's weight", sizer->error);
    }

    if (stage == NULL)
        linear->in_size = columns;
    sizer->hidden = size_product(layer->info.num_heads, layer->info.width.score);
    linear->stage_bias =
        tensor_view_find(sizer->view, sizer->layout->linears[which].bias);
    tensor_fit(linear->stage_bias, &columns, NULL,
               "one number for each row of the weight", sizer->error);
}

/* --- one tensor for all heads --- */

/* Returns whether a packed weight of that shape is [E, 3E]. Where the output weight,
 * [out, H*D], is a third of the rows wide, the shape has another reason. */
static bool is_turned(const struct sizer *sizer, size_t rows, size_t columns) {
    const struct layout *layout = sizer->layout;
    const struct safetensors_tensor *output =
        tensor_view_find(sizer->view, layout->linears[LINEAR_OUTPUT].weight);
    bool narrow = layout->wide && output != NULL && output->rank == 2 && rows % 3 == 0 &&
                  output->shape[1] == rows / 3;

    return columns % 3 == 0 && columns / 3 == rows && !narrow;
}

/* Checks a weight that has the rows of query, key and value in one tensor. */
static void fit_packed(struct sizer *sizer, size_t which,
                       const struct safetensors_tensor *weight) {
    struct layer_linear *linear = &sizer->layer->linears[which];
    const struct layout *layout = sizer->layout;
    size_t rows = TENSOR_ANY, columns = TENSOR_ANY;

    tensor_fit(weight, &rows, &columns, "it is a matrix", sizer->error);
    bool square = is_turned(sizer, rows, columns);
    bool turned = square || layout->transposed;
    size_t out = turned ? columns : rows, in = turned ? rows : columns;
    sizer->hidden = layout->wide && out % 3 == 0 ? out / 3 : in;
    linear->transposed = layout->transposed || (square && layout->turned);
    rows = size_product(sizer->hidden, 3);
    fit_matrix(sizer, weight, linear->transposed, &rows, &in,
               layout->wide ? "it packs query, key and value weights"
                            : "it packs square query, key and value weights");

    linear->weight = weight;
    linear->first_row = which * sizer->hidden;
    linear->in_size = in;
}

/* Checks one weight for all heads, and its bias; the rows of the query's weight determine
 * H*D. Those of the key's may be fewer whole heads, which the others share. */
static void fit_all_heads(struct sizer *sizer, size_t which,
                          const struct safetensors_tensor *weight) {
    const struct linear_names *names = sizer->layout->linears;
    struct layer_linear *linear = &sizer->layer->linears[which];
    size_t heads = sizer->layer->info.num_heads;
    size_t size = heads > 0 ? sizer->hidden / heads : 0;
    size_t out = sizer->layout->transposed ? 1 : 0; /* axis of the weight's rows */
    size_t groups = size > 0 && weight->rank == 2 ? weight->shape[out] / size : 0;

    if (which == ATTN_KEY && names[LINEAR_PACKED].bias == NULL && groups > 0 &&
        groups < heads && heads % groups == 0 && weight->shape[out] == groups * size)
        sizer->key_hidden = weight->shape[out];
    linear->transposed = sizer->layout->transposed;
    fit_linear(sizer, &names[which],
               which != ATTN_QUERY && sizer->key_hidden > 0 ? &sizer->key_hidden
                                                            : &sizer->hidden,
               &linear->in_size,
               "the weights of query, key and value must have the same number of rows, "
               "or those of key and value fewer whole heads, which divide num_heads",
               linear);
}

static void fit_projection(struct sizer *sizer, size_t which) {
    const struct linear_names *names = sizer->layout->linears;
    struct layer_linear *linear = &sizer->layer->linears[which];
    const struct safetensors_tensor *packed =
        tensor_view_find(sizer->view, names[LINEAR_PACKED].weight);
    const struct safetensors_tensor *packed_bias =
        tensor_view_find(sizer->view, names[LINEAR_PACKED].bias);
    const struct safetensors_tensor *weight =
        tensor_view_find(sizer->view, names[which].weight);

    if (packed != NULL)
        fit_packed(sizer, which, packed);
    else if (names[LINEAR_HEAD_QUERY].weight != NULL)
        fit_heads(sizer, which, weight);
    else
        fit_all_heads(sizer, which, weight);
    if (packed_bias == NULL)
        return;
    size_t rows = size_product(sizer->hidden, 3);
    tensor_fit(packed_bias, &rows, NULL,
               "one number for each row of query, key and value", sizer->error);
    linear->bias = packed_bias;
    linear->bias_rows = which * sizer->hidden - linear->first_row;
}

/* --- the layer --- */

/* Determines H before the projections: counted, where each head has tensors of its own,
 * or as it is given. */
static void find_num_heads(const struct sizer *sizer) {
    size_t *given = &sizer->layer->info.num_heads;

    if (sizer->layout->linears[LINEAR_HEAD_QUERY].weight != NULL) {
        size_t counted = count_numbered(sizer);
        if (*given > 0 && *given != counted)
            error_keep(sizer->error, ATTN_E_VALUE,
                       "num_heads=%zu was given, but the file has tensors of %zu head%s",
                       *given, counted, plural_of(counted));
        *given = counted;
    } else if (*given == 0) {
        error_keep(sizer->error, ATTN_E_VALUE,
                   "layout %s does not determine the number of heads; write num_heads=N "
                   "after the file, as in --model NAME=FILE,num_heads=5, or "
                   "\"num_heads\": \"5\" in its __metadata__",
                   sizer->layout->name);
    }
}

/* Determines D, and which rows the heads have. */
static void divide_rows(const struct sizer *sizer) {
    struct layer *layer = sizer->layer;
    size_t heads = layer->info.num_heads;
    char divisors[DIVISORS_TEXT_SIZE];

    if (sizer->error->status == ATTN_OK && sizer->hidden % heads != 0) {
        divisors_print(sizer->hidden, divisors);
        error_set(sizer->error, ATTN_E_VALUE,
                  "num_heads=%zu does not divide the %zu rows of query, key and value; "
                  "%s do",
                  heads, sizer->hidden, divisors);
    }
    if (sizer->error->status != ATTN_OK)
        return;

    size_t size = sizer->hidden / heads;
    layer->info.width.score = layer->info.width.head = size;
    layer->info.num_kv_heads = sizer->key_hidden > 0 ? sizer->key_hidden / size : heads;
    for (size_t which = ATTN_QUERY; which <= ATTN_VALUE; which++) {
        struct layer_linear *linear = &layer->linears[which];
        linear->num_heads = which == ATTN_QUERY ? heads : layer->info.num_kv_heads;
        linear->head_rows = size;
        linear->group_heads = linear->of_heads != NULL ? 1 : linear->num_heads;
    }
}

/* Finds the norms of queries and keys. Only classes that rotate have them. */
static void fit_norms(const struct sizer *sizer) {
    const char *const *names = sizer->layout->norms;
    struct layer *layer = sizer->layer;
    attn_model_info *info = &layer->info;
    const struct safetensors_tensor *query = tensor_view_find(sizer->view, names[0]);
    const struct safetensors_tensor *key = tensor_view_find(sizer->view, names[1]);

    if (query == NULL && key == NULL) {
        if (info->head_norm.eps > 0)
            error_keep(sizer->error, ATTN_E_VALUE,
                       "eps is for norms of queries and keys (q_norm.scale), which the "
                       "layer does not have; leave it out");
        return;
    }
    if (query == NULL || key == NULL)
        error_keep(sizer->error, ATTN_E_FORMAT,
                   "tensor '%.80s' is there, but '%s' is missing; give both",
                   query != NULL ? query->name : key->name, names[query != NULL]);
    else if (info->rotation.base == 0 || info->head_norm.eps == 0)
        error_keep(sizer->error, ATTN_E_VALUE,
                   "tensor '%.80s' is a norm of a class that rotates queries and keys; "
                   "write rope_theta= and eps= after the file, for Qwen3 "
                   "rope_theta=1000000,eps=1e-6; norms of Gemma 3 multiply by 1 + "
                   "scale: give its folder",
                   query->name);
    tensor_fit(query, &info->width.score, NULL, "one number for each of a head",
               sizer->error);
    tensor_fit(key, &info->width.score, NULL, "one number for each of a head",
               sizer->error);
    info->head_norm.kind = ATTN_NORM_RMS;
    layer->query_norm.weight = query;
    layer->key_norm.weight = key;
}

/* Rotates whole heads if a base is given. */
static void rotate_heads(const struct sizer *sizer) {
    struct layer *layer = sizer->layer;
    attn_model_info *info = &layer->info;

    if (info->rotation.base == 0) {
        if (layer->rotation.interleaved)
            error_keep(sizer->error, ATTN_E_VALUE,
                       "rope_interleaved is for layers that rotate; write rope_theta=, "
                       "or leave it out");
        return;
    }
    if (info->width.score % 2 != 0)
        error_keep(sizer->error, ATTN_E_VALUE,
                   "rope_theta rotates pairs of numbers, but heads have %zu; leave it "
                   "out, or correct num_heads",
                   info->width.score);
    if (layer->additive[0] != NULL)
        error_keep(sizer->error, ATTN_E_UNSUPPORTED,
                   "rope_theta is not for additive scoring; leave it out");
    layer->rotation.base = info->rotation.base;
    layer->rotation.dims = info->rotation.size = info->width.score;
    info->rotation.type = rotation_type_name(layer->rotation.type);
}

/* Finds the output projection, which lies as the queries' does; without one the outputs
 * are as wide as all heads. */
static void fit_output(const struct sizer *sizer) {
    struct layer_linear *output = &sizer->layer->linears[ATTN_OUTPUT];

    *output =
        (struct layer_linear){.in_size = sizer->hidden,
                              .num_heads = 1,
                              .group_heads = 1,
                              .transposed = sizer->layer->linears[ATTN_QUERY].transposed};
    fit_linear(sizer, &sizer->layout->linears[LINEAR_OUTPUT], &output->head_rows,
               &output->in_size, "its input is the concatenated heads", output);
    if (output->weight == NULL)
        output->head_rows = sizer->hidden;
}

/* Finds the three tensors of additive scoring, which a file has all or none of. */
static void fit_additive(const struct sizer *sizer) {
    const struct safetensors_tensor **tensors = sizer->layer->additive;
    const char *missing = NULL;
    size_t present = 0, one = 1, width = TENSOR_ANY,
           *size = &sizer->layer->info.width.score;

    for (size_t i = 0; i < 3; i++) {
        tensors[i] = tensor_view_find(sizer->view, layout_additive[i]);
        present += tensors[i] != NULL;
        missing = tensors[i] == NULL ? layout_additive[i] : missing;
    }
    if (present > 0 && missing != NULL)
        error_keep(
            sizer->error, ATTN_E_FORMAT,
            "tensor '%.*s%s' is missing; additive scoring needs " LAYOUT_ADDITIVE_QUERY
            ", " LAYOUT_ADDITIVE_KEY " and " LAYOUT_ADDITIVE_SCORE,
            (int)sizer->view->prefix_size, sizer->view->tensors[0].name, missing);
    if (missing != NULL)
        return;

    tensor_fit(tensors[0], &width, size, "its input is the query of one head",
               sizer->error);
    tensor_fit(tensors[1], &width, size, "it must be as wide as " LAYOUT_ADDITIVE_QUERY,
               sizer->error);
    /* a Linear of one output has [1, A]; a plain vector has [A] */
    bool is_vector = tensors[2]->rank == 1;
    tensor_fit(tensors[2], is_vector ? &width : &one, is_vector ? NULL : &width,
               "one number for each row of " LAYOUT_ADDITIVE_QUERY, sizer->error);
}

void layout_fill_layer(const struct layout *layout, const struct tensor_view *view,
                       struct layer *layer, attn_error *error) {
    struct sizer sizer = {.layout = layout, .view = view, .layer = layer, .error = error};

    if (layout->transposed && !layout->own)
        error_keep(error, ATTN_E_VALUE,
                   "transposed is for tensors that are named by q=, k=, v=, qkv= and o=; "
                   "leave it out");
    layer->info.layout = layout->name;
    layer->value_factor = 1;
    find_num_heads(&sizer);
    for (size_t which = ATTN_QUERY; which <= ATTN_VALUE; which++)
        fit_projection(&sizer, which);
    divide_rows(&sizer);
    fit_output(&sizer);
    fit_additive(&sizer);
    fit_norms(&sizer);
    rotate_heads(&sizer);
    layer_complete(layer);
}
