/* SPDX-License-Identifier: Apache-2.0 */
#include "math/model.h"

#include "base/size.h"

#include <attnd/attention.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* One array of the model: where its pointer is kept, and its shape. */
struct part {
    float **array;
    bool present;
    size_t rows, columns;
};

/* Adds up the parts' sizes in floats, each rounded up to ATTN_ALIGNMENT; when `memory` is
 * not NULL it also sets their pointers. */
static bool place(const struct part *parts, size_t count, float *memory,
                  size_t *ret_parameters, size_t *ret_floats) {
    size_t parameters = 0, floats = 0;
    for (size_t i = 0; i < count; i++) {
        size_t size, rounded;
        if (!parts[i].present)
            continue;
        if (parts[i].rows > INT_MAX || parts[i].columns > INT_MAX ||
            !size_mul(parts[i].rows, parts[i].columns, &size) ||
            !size_round_up(size, ATTN_ALIGNMENT / sizeof(float), &rounded))
            return false;
        if (memory != NULL)
            *parts[i].array = memory + floats;
        if (!size_add(floats, rounded, &floats) ||
            !size_add(parameters, size, &parameters))
            return false;
    }
    *ret_parameters = parameters;
    *ret_floats = floats;
    return true;
}

attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model) {
    attn_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return ATTN_E_NOMEM;
    model->info = *info;
    model->info.engine = model->info.cpu = model->info.precision = "none";
    attn_status status = ATTN_E_OVERFLOW;
    size_t hidden, floats, bytes;
    if (!size_mul(info->num_heads, info->head_size, &hidden))
        goto fail;
    bool additive = info->scoring == ATTN_ADDITIVE;
    const struct part parts[] = {
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
    const size_t count = sizeof parts / sizeof parts[0];
    if (!place(parts, count, NULL, &model->info.parameters, &floats) ||
        !size_mul(floats, sizeof(float), &bytes))
        goto fail;
    status = ATTN_E_NOMEM;
    model->memory = aligned_alloc(ATTN_ALIGNMENT, bytes);
    if (model->memory == NULL)
        goto fail;
    memset(model->memory, 0, bytes);
    place(parts, count, model->memory, &model->info.parameters, &floats);
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

attn_status attn_model_set_engine(attn_model *model, const attn_engine_options *options,
                                  attn_error *ret_error) {
    return engine_make(model, options, ret_error);
}

void attn_model_trim(attn_model *model) {
    if (!model->engine.native || model->memory == NULL)
        return;
    free(model->memory);
    model->memory = NULL;
    model->info.memory -= model->info.bytes;
    engine_forget_weights(&model->engine);
}
