/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: the memory of a model's weights, and its engine. */
#include "math/model.h"

#include "base/error.h"
#include "math/reserve.h"

#include <attnd/attention.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* One array of the model: where its pointer is kept, and its shape. */
struct weight_array {
    float **pointer;
    bool present;
    size_t rows, columns;
};

/* Lays the arrays out one after the other in a block of *ret_floats; their offsets are in
 * floats, too. */
static bool reserve_arrays(const struct weight_array *arrays, size_t count,
                           size_t *ret_offsets, size_t *ret_floats,
                           size_t *ret_parameters) {
    size_t parameters = 0, floats = 0;

    for (size_t i = 0; i < count; i++) {
        size_t rows = arrays[i].rows, columns = arrays[i].columns;
        if (!arrays[i].present)
            continue;
        if (rows > INT_MAX || columns > INT_MAX ||
            !reserve_floats(&floats, rows, columns, &ret_offsets[i]))
            return false;
        parameters += rows * columns; /* at most `floats` */
    }

    *ret_floats = floats;
    *ret_parameters = parameters;
    return true;
}

attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model) {
    bool additive = info->scoring == ATTN_ADDITIVE;
    size_t hidden, floats, bytes;
    attn_status status = ATTN_E_OVERFLOW;

    attn_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return ATTN_E_NOMEM;
    model->info = *info;
    model->info.engine = model->info.cpu = model->info.precision = "none";
    if (!size_mul(info->num_heads, info->head_size, &hidden))
        goto fail;

    const struct weight_array arrays[] = {
        {&model->query_weight, true, hidden, info->query_size},
        {&model->query_bias, info->query_bias, hidden, 1},
        {&model->key_weight, true, hidden, info->key_size},
        {&model->key_bias, info->key_bias, hidden, 1},
        {&model->value_weight, true, hidden, info->value_size},
        {&model->value_bias, info->value_bias, hidden, 1},
        {&model->output_weight, info->output_projection, info->out_size, hidden},
        {&model->output_bias, info->output_bias, info->out_size, 1},
        {&model->additive_query, additive, info->additive_size, info->head_size},
        {&model->additive_key, additive, info->additive_size, info->head_size},
        {&model->additive_score, additive, info->additive_size, 1},
    };
    enum { COUNT = sizeof arrays / sizeof arrays[0] };
    size_t offsets[COUNT];
    if (!reserve_arrays(arrays, COUNT, offsets, &floats, &model->info.parameters) ||
        !size_mul(floats, sizeof(float), &bytes))
        goto fail;

    status = ATTN_E_NOMEM;
    model->memory = aligned_alloc(ATTN_ALIGNMENT, bytes);
    if (model->memory == NULL)
        goto fail;
    memset(model->memory, 0, bytes);
    for (size_t i = 0; i < COUNT; i++)
        *arrays[i].pointer = arrays[i].present ? model->memory + offsets[i] : NULL;
    model->info.bytes = model->info.memory = bytes;
    *ret_model = model;
    return ATTN_OK;

fail:
    attn_model_destroy(model);
    return status;
}

void attn_model_destroy(attn_model *model) {
    if (model == NULL)
        return;
    engine_deinit(&model->engine);
    free(model->memory);
    free(model);
}

const attn_model_info *attn_model_get_info(const attn_model *model) {
    return &model->info;
}

attn_status model_make_engine(const attn_model *model, const attn_engine_options *options,
                              struct engine *ret_engine, attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->head_size;
    const struct layer_weights weights = {
        .to_query =
            {model->query_weight, model->query_bias, hidden, info->query_size, {0}},
        .to_key = {model->key_weight, model->key_bias, hidden, info->key_size, {0}},
        .to_value =
            {model->value_weight, model->value_bias, hidden, info->value_size, {0}},
        .to_output =
            {model->output_weight, model->output_bias, info->out_size, hidden, {0}},
        .additive_query = model->additive_query,
        .additive_key = model->additive_key,
        .additive_score = model->additive_score,
    };

    if (model->memory == NULL) {
        error_set(ret_error, ATTN_E_UNSUPPORTED,
                  "model '%s': attn_model_trim() has released its weights; "
                  "reload the model",
                  info->name);
        return ATTN_E_UNSUPPORTED;
    }
    return engine_make(info, &weights, options, ret_engine, ret_error);
}

void model_use_engine(attn_model *model, const struct engine *engine) {
    attn_model_info *info = &model->info;

    info->memory += engine->bytes - model->engine.bytes;
    info->engine = engine->native ? "native" : "openblas";
    info->cpu = engine->kernels->name;
    info->precision = engine->kernels->k_step == 2 ? "bf16" : "f32";
    engine_deinit(&model->engine);
    model->engine = *engine;
}

attn_status attn_model_set_engine(attn_model *model, const attn_engine_options *options,
                                  attn_error *ret_error) {
    struct engine engine;
    attn_status status = model_make_engine(model, options, &engine, ret_error);

    if (status == ATTN_OK)
        model_use_engine(model, &engine);
    return status;
}

void attn_model_trim(attn_model *model) {
    if (!model->engine.native || model->memory == NULL)
        return;
    free(model->memory);
    model->memory = NULL;
    model->info.memory -= model->info.bytes;
    engine_forget_weights(&model->engine);
}
