/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: puts a layer into the engine's terms. Pairs of interleaved rotations are moved
 * apart, and norms that multiply by 1 + w become norms that multiply by w. */
#include "weights/layer/make.h"

#include "base/error.h"
#include "weights/layer/distance.h"
#include "weights/layer/frequencies.h"
#include "weights/layer/gather.h"
#include "weights/layer/latent.h"

#include <stdio.h>
#include <string.h>

static void fill_linears(const struct layer *layer, attn_model_info *info) {
    const struct layer_linear *linears = layer->linears;
    size_t query = layer->latent.query > 0 ? ATTN_LATENT_QUERY : ATTN_QUERY;
    bool latent_keys = layer->latent.key > 0;

    info->width.query = linears[query].in_size;
    info->width.key = linears[latent_keys ? ATTN_LATENT_KEY : ATTN_KEY].in_size;
    info->width.value = linears[latent_keys ? ATTN_LATENT_KEY : ATTN_VALUE].in_size;
    info->width.out = linears[ATTN_OUTPUT].head_rows;
    info->num_heads = layer->num_heads;
    info->num_kv_heads = layer->num_kv_heads;
    info->width.head = layer->value_size;
    info->width.score = layer->head_size;
    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++) {
        info->linears[i].weight = linears[i].weight != NULL;
        info->linears[i].bias = linears[i].bias != NULL || linears[i].stage_bias != NULL;
    }
}

static void fill_latents(const struct layer *layer, attn_model_info *info) {
    const struct layer_latent *latent = &layer->latent;

    info->latent.query = latent->query;
    if (latent->key > 0) {
        info->latent.key = latent->key + latent->shared;
        info->latent.shared = latent->shared;
    }
    info->latent.eps = latent->key_norm.eps;
}

static void fill_norms(const struct layer *layer, bool pre_norm, attn_model_info *info) {
    const struct layer_norm *before = &layer->norm_before;
    const struct safetensors_tensor *weight = before->weight;

    info->head_norm.kind = layer->query_norm.kind;
    info->head_norm.whole = layer->head_norm_whole;
    info->head_norm.per_head = layer->head_norm_each;
    info->head_norm.last = layer->head_norm_last;
    info->head_norm.bias = layer->query_norm.bias != NULL || layer->key_norm.bias != NULL;
    info->head_norm.eps = layer->query_norm.eps;
    info->out_norm.kind = layer->out_norm.kind;
    info->out_norm.eps = layer->out_norm.eps;
    info->value_norm.kind = layer->value_norm.kind;
    info->value_norm.eps = layer->value_norm.eps;
    info->pre_norm.kind = before->kind;
    info->pre_norm.applied = pre_norm && before->kind != ATTN_NORM_NONE;
    info->pre_norm.bias = before->bias != NULL;
    info->pre_norm.eps = before->eps;
    snprintf(info->pre_norm.name, sizeof info->pre_norm.name, "%s",
             weight != NULL ? weight->name : "");
}

void layer_fill_info(const struct layer *layer, bool pre_norm,
                     attn_model_info *ret_info) {
    *ret_info = (attn_model_info){
        .layout = layer->family,
        .kind = layer->part[0] == '\0' ? NULL
                : layer->cross         ? "cross"
                : layer->borrows       ? "borrowed"
                                       : "self",
        .layer = layer->index,
        .mask = {.causal = layer->causal, .window = layer->window, .chunk = layer->chunk},
        .score = {.scale = layer->scale,
                  .softcap = layer->softcap,
                  .sinks = layer->sinks != NULL,
                  .bias = layer->bias.kind,
                  .bias_distance = layer->bias.max_distance},
        .projection.clip = layer->clip,
        .projection.clip_last = layer->clip_last,
        .query_factor = layer->query_factor};
    if (layer->additive[0] != NULL) {
        ret_info->score.kind = ATTN_ADDITIVE;
        ret_info->width.additive = layer->additive[0]->shape[0];
    }
    fill_linears(layer, ret_info);
    fill_latents(layer, ret_info);
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
        ret_info->rotation.values = layer->rotation.values;
    }
}

void layer_describe_features(const struct layer *layer,
                             char ret_text[FEATURES_TEXT_SIZE]) {
    const struct features_origin origin = {
        .lender = layer->lender,
        .value_factor = layer->value_factor,
        .interleaved = layer->rotation.interleaved,
        .sections = layer->rotation.section_sizes,
        .sections_interleaved = layer->rotation.sections == SECTIONS_INTERLEAVED,
        .num_buckets = layer->bias.num_buckets,
        .plus_one = layer->query_norm.plus_one || layer->norm_before.plus_one,
        .bare_heads = layer->query_norm.bare,
        .bare_before = layer->norm_before.bare};
    struct features features;
    attn_model_info info;

    layer_fill_info(layer, false, &info);
    features_list(&info, &origin, &features);
    strcpy(ret_text, features.text);
}

/* Fills in the weight of a norm that has none. */
static void fill_ones(float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        numbers[i] = 1;
}

/* Reads the weights of a norm, of which each head may have a tensor of its own. */
static attn_status read_norm_weight(const struct layer_norm *norm, size_t count,
                                    float *ret_numbers, attn_error *ret_error) {
    const struct safetensors_tensor *weight = norm->weight;
    attn_status status = ATTN_OK;

    if (weight == NULL) {
        fill_ones(ret_numbers, count);
        return ATTN_OK;
    }
    size_t heads = norm->of_heads != NULL ? count / weight->elements : 1;
    for (size_t h = 0; status == ATTN_OK && h < heads; h++)
        status = safetensors_read_all(tensor_view_find_head(norm->of_heads, weight, h),
                                      ret_numbers + h * weight->elements, ret_error);
    for (size_t i = 0; norm->plus_one && i < count; i++)
        ret_numbers[i] += 1;
    return status;
}

/* Reads the vectors of norms and sinks that the model has. */
static attn_status read_vectors(const struct layer *layer, attn_model *model,
                                attn_error *ret_error) {
    const struct layer_norm *query = &layer->query_norm, *key = &layer->key_norm;
    const struct layer_norm *before = &layer->norm_before;
    const struct {
        const struct layer_norm *norm;
        size_t array;
    } weights[] = {{query, MODEL_QUERY_NORM},
                   {key, MODEL_KEY_NORM},
                   {&layer->out_norm, MODEL_OUT_NORM},
                   {before, MODEL_PRE_NORM}};
    const struct {
        const struct safetensors_tensor *stored;
        size_t array;
    } others[] = {{query->bias, MODEL_QUERY_NORM_BIAS},
                  {key->bias, MODEL_KEY_NORM_BIAS},
                  {layer->latent.query_norm.weight, MODEL_LATENT_QUERY_NORM},
                  {layer->latent.key_norm.weight, MODEL_LATENT_KEY_NORM},
                  {before->bias, MODEL_PRE_NORM_BIAS},
                  {layer->sinks, MODEL_SINKS},
                  {layer->additive[0], MODEL_ADDITIVE_QUERY},
                  {layer->additive[1], MODEL_ADDITIVE_KEY},
                  {layer->additive[2], MODEL_ADDITIVE_SCORE}};
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        const struct model_array *array = &model->arrays[weights[i].array];
        if (status == ATTN_OK && array->rows > 0)
            status =
                read_norm_weight(weights[i].norm, array->rows, array->numbers, ret_error);
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const struct model_array *array = &model->arrays[others[i].array];
        if (status == ATTN_OK && array->rows > 0 && others[i].stored != NULL)
            status = safetensors_read_all(others[i].stored, array->numbers, ret_error);
    }
    return status;
}

/* Moves pairs of a rotation to where the engine has them, in all that makes queries and
 * keys. */
static attn_status separate_pairs(const struct layer *layer, attn_model *model,
                                  attn_error *ret_error) {
    static const size_t moved[] = {MODEL_WEIGHT(ATTN_QUERY), MODEL_BIAS(ATTN_QUERY),
                                   MODEL_QUERY_NORM,         MODEL_QUERY_NORM_BIAS,
                                   MODEL_WEIGHT(ATTN_KEY),   MODEL_BIAS(ATTN_KEY),
                                   MODEL_KEY_NORM,           MODEL_KEY_NORM_BIAS};
    size_t size = model->info.width.score;

    for (size_t i = 0; i < sizeof moved / sizeof moved[0]; i++) {
        const struct model_array *array = &model->arrays[moved[i]];
        if (array->rows > 0 &&
            rotation_separate_pairs(&layer->rotation, array->numbers, array->rows / size,
                                    size, array->columns) != ATTN_OK)
            return error_set(ret_error, ATTN_E_NOMEM,
                             "not enough memory to move pairs of rows apart");
    }
    return ATTN_OK;
}

static attn_status read_linears(const struct layer *layer, attn_model *model,
                                attn_error *ret_error) {
    attn_status status = ATTN_OK;

    for (attn_linear i = 0; i < ATTN_NUM_LINEARS && status == ATTN_OK; i++) {
        if (layer->linears[i].weight != NULL)
            status = gather_linear(&layer->linears[i], model_weight(model, i),
                                   model_bias(model, i), ret_error);
    }
    return status;
}

/* Multiplies values by their factor. */
static void scale_values(const struct layer *layer, attn_model *model) {
    const size_t scaled[] = {MODEL_WEIGHT(ATTN_VALUE), MODEL_BIAS(ATTN_VALUE)};

    for (size_t i = 0; i < 2; i++) {
        const struct model_array *array = &model->arrays[scaled[i]];
        for (size_t k = 0; k < array->rows * array->columns; k++)
            array->numbers[k] *= (float)layer->value_factor;
    }
}

attn_status layer_read_model(const struct layer *layer, attn_model *model,
                             attn_error *ret_error) {
    const struct layer_bias *bias = &layer->bias;
    size_t heads = layer->num_heads;

    attn_status status = read_linears(layer, model, ret_error);
    if (status == ATTN_OK)
        status = read_vectors(layer, model, ret_error);
    if (status == ATTN_OK && layer->value_factor != 1)
        scale_values(layer, model);
    if (status == ATTN_OK && layer->latent.key > 0)
        status = latent_lay_out(&layer->latent, model, ret_error);
    if (status == ATTN_OK && (layer->rotation.interleaved || layer->rotation.backward))
        status = separate_pairs(layer, model, ret_error);
    if (status == ATTN_OK && layer->rotation.dims > 0)
        status = frequencies_fill(&layer->rotation, &model->rotation, ret_error);
    if (model->rotation.axis_of != NULL)
        rotation_fill_axes(&layer->rotation, model->rotation.axis_of);
    if (status == ATTN_OK && bias->kind == ATTN_BIAS_BUCKETS)
        status = distance_read_biases(
            bias, heads, model->arrays[MODEL_DISTANCE_BIAS].numbers, ret_error);
    else if (status == ATTN_OK && bias->kind != ATTN_BIAS_NONE)
        distance_fill_slopes(bias, heads, model->arrays[MODEL_SLOPES].numbers);
    return status;
}
