/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: puts a layer into the engine's terms. Pairs of interleaved rotations are moved
 * apart, and norms that multiply by 1 + w become norms that multiply by w. */
#include "weights/families/model/make.h"

#include "base/error.h"
#include "weights/families/gather.h"
#include "weights/families/model/distance.h"
#include "weights/families/model/frequencies.h"

#include <stdio.h>

static void fill_linears(const struct layer *layer, attn_model_info *info) {
    const struct layer_linear *linears = layer->linears;

    info->width.query = linears[LAYER_QUERY].in_size;
    info->width.key = linears[LAYER_KEY].in_size;
    info->width.value = linears[LAYER_VALUE].in_size;
    info->width.out = linears[LAYER_OUTPUT].head_rows;
    info->num_heads = layer->num_heads;
    info->num_kv_heads = layer->num_kv_heads;
    info->width.head = layer->head_size;
    info->projection.query_bias = linears[LAYER_QUERY].bias != NULL;
    info->projection.key_bias = linears[LAYER_KEY].bias != NULL;
    info->projection.value_bias = linears[LAYER_VALUE].bias != NULL;
    info->projection.output_bias = linears[LAYER_OUTPUT].bias != NULL;
    info->projection.output = true;
    info->projection.gate = linears[LAYER_GATE].weight != NULL;
    info->projection.gate_bias = linears[LAYER_GATE].bias != NULL;
}

static void fill_norms(const struct layer *layer, bool pre_norm, attn_model_info *info) {
    const struct layer_norm *before = &layer->norm_before;
    const struct safetensors_tensor *weight = before->weight;

    info->head_norm.kind = layer->query_norm.kind;
    info->head_norm.whole = layer->head_norm_whole;
    info->head_norm.bias = layer->query_norm.bias != NULL || layer->key_norm.bias != NULL;
    info->head_norm.eps = layer->query_norm.eps;
    info->out_norm.kind = layer->out_norm.kind;
    info->out_norm.eps = layer->out_norm.eps;
    info->pre_norm.kind = before->kind;
    info->pre_norm.applied = pre_norm && before->kind != ATTN_NORM_NONE;
    info->pre_norm.bias = before->bias != NULL;
    info->pre_norm.eps = before->eps;
    snprintf(info->pre_norm.name, sizeof info->pre_norm.name, "%s",
             weight != NULL ? weight->name : "");
}

void layer_fill_info(const struct layer *layer, bool pre_norm,
                     attn_model_info *ret_info) {
    *ret_info =
        (attn_model_info){.layout = layer->family,
                          .kind = layer->cross ? "cross" : "self",
                          .layer = layer->index,
                          .mask = {.causal = layer->causal, .window = layer->window,
                                   .chunk = layer->chunk},
                          .score = {.scale = layer->scale,
                                    .softcap = layer->softcap,
                                    .sinks = layer->sinks != NULL,
                                    .bias = layer->bias.kind,
                                    .bias_distance = layer->bias.max_distance},
                          .projection.clip = layer->clip};
    fill_linears(layer, ret_info);
    fill_norms(layer, pre_norm, ret_info);

    if (layer->rotation.dims > 0) {
        ret_info->rotation.size = layer->rotation.dims;
        ret_info->rotation.type = rotation_type_name(layer->rotation.type);
        ret_info->rotation.base = layer->rotation.base;
        ret_info->rotation.axes =
            layer->rotation.sections != SECTIONS_NONE ? ATTN_AXES : 1;
        ret_info->rotation.grid = layer->rotation.grid;
        ret_info->rotation.grid_first = layer->rotation.grid_first;
        if (layer->rotation.grid > 0) /* at most CONFIG_COUNT_MAX^2 and a few */
            ret_info->context_length =
                layer->rotation.grid_first + layer->rotation.grid * layer->rotation.grid;
    }
}

/* Fills in the weight of a norm that has none. */
static void fill_ones(float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        numbers[i] = 1;
}

/* Reads the vectors of norms and sinks that the model has. */
static attn_status read_vectors(const struct layer *layer, attn_model *model,
                                attn_error *ret_error) {
    const struct layer_norm *query = &layer->query_norm, *key = &layer->key_norm;
    const struct layer_norm *before = &layer->norm_before;
    const struct {
        const struct safetensors_tensor *stored;
        float *numbers; /* NULL: the model does not have them */
        bool plus_one;
    } vectors[] = {
        {query->weight, model->query_norm_weight, query->plus_one},
        {query->bias, model->query_norm_bias, false},
        {key->weight, model->key_norm_weight, key->plus_one},
        {key->bias, model->key_norm_bias, false},
        {layer->out_norm.weight, model->out_norm_weight, layer->out_norm.plus_one},
        {before->weight, model->pre_norm_weight, before->plus_one},
        {before->bias, model->pre_norm_bias, false},
        {layer->sinks, model->sinks, false},
    };

    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        float *numbers = vectors[i].numbers;
        if (numbers == NULL)
            continue;
        if (vectors[i].stored == NULL) {
            fill_ones(numbers, model->info.width.query);
            continue;
        }
        attn_status status = safetensors_read_all(vectors[i].stored, numbers, ret_error);
        if (status != ATTN_OK)
            return status;
        for (size_t k = 0; vectors[i].plus_one && k < vectors[i].stored->elements; k++)
            numbers[k] += 1;
    }
    return ATTN_OK;
}

/* Moves pairs of an interleaved rotation apart, in all that makes queries and keys. */
static attn_status separate_pairs(const struct layer *layer, attn_model *model,
                                  attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    bool whole = info->head_norm.whole;
    const struct {
        float *rows;
        size_t num_heads, columns;
    } moved[] = {
        {model->query_weight, info->num_heads, info->width.query},
        {model->query_bias, info->num_heads, 1},
        {model->query_norm_weight, whole ? info->num_heads : 1, 1},
        {model->query_norm_bias, whole ? info->num_heads : 1, 1},
        {model->key_weight, info->num_kv_heads, info->width.key},
        {model->key_bias, info->num_kv_heads, 1},
        {model->key_norm_weight, whole ? info->num_kv_heads : 1, 1},
        {model->key_norm_bias, whole ? info->num_kv_heads : 1, 1},
    };

    for (size_t i = 0; i < sizeof moved / sizeof moved[0]; i++) {
        if (moved[i].rows != NULL &&
            rotation_separate_pairs(moved[i].rows, moved[i].num_heads, info->width.head,
                                    moved[i].columns, layer->rotation.dims) != ATTN_OK)
            return error_set(ret_error, ATTN_E_NOMEM,
                             "not enough memory to move pairs of rows apart");
    }
    return ATTN_OK;
}

static attn_status read_linears(const struct layer *layer, attn_model *model,
                                attn_error *ret_error) {
    struct model_array arrays[MODEL_ARRAYS];
    attn_status status = ATTN_OK;

    model_list_arrays(model, arrays);
    for (size_t i = 0; i <= LAYER_OUTPUT && status == ATTN_OK; i++)
        status = gather_linear(&layer->linears[i], *arrays[2 * i].pointer,
                               *arrays[2 * i + 1].pointer, ret_error);
    if (status == ATTN_OK && model->gate_weight != NULL)
        status = gather_linear(&layer->linears[LAYER_GATE], model->gate_weight,
                               model->gate_bias, ret_error);
    return status;
}

attn_status layer_read_model(const void *context, attn_model *model,
                             attn_error *ret_error) {
    const struct layer *layer = context;
    const struct layer_bias *bias = &layer->bias;
    size_t heads = layer->num_heads;

    attn_status status = read_linears(layer, model, ret_error);
    if (status == ATTN_OK)
        status = read_vectors(layer, model, ret_error);
    if (status == ATTN_OK && layer->rotation.interleaved)
        status = separate_pairs(layer, model, ret_error);
    if (status == ATTN_OK && layer->rotation.dims > 0)
        status = frequencies_fill(&layer->rotation, &model->rotation, ret_error);
    if (model->rotation.axis_of != NULL)
        rotation_fill_axes(&layer->rotation, model->rotation.axis_of);
    if (status == ATTN_OK && bias->kind == ATTN_BIAS_BUCKETS)
        status = distance_read_biases(bias, heads, model->distance_bias, ret_error);
    else if (status == ATTN_OK && bias->kind != ATTN_BIAS_NONE)
        distance_fill_slopes(bias, heads, model->alibi_slopes);
    return status;
}
