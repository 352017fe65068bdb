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

enum { QUERY_WEIGHT = 0, KEY_WEIGHT = 2, NUM_ARRAYS = 11 }; /* of list_arrays() */

/* Lists the arrays of a model of the sizes in model->info; `hidden` is H*D. */
static void list_arrays(attn_model *model, size_t hidden,
                        struct weight_array ret_arrays[NUM_ARRAYS]) {
    const attn_model_info *info = &model->info;
    bool additive = info->scoring == ATTN_ADDITIVE;
    const struct weight_array arrays[NUM_ARRAYS] = {
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
    memcpy(ret_arrays, arrays, sizeof arrays);
}

/* Sets parameters, bytes and memory of model->info. The bytes of each array are rounded
 * up, as aligned_alloc() demands. */
static bool count_arrays(attn_model *model, struct weight_array arrays[NUM_ARRAYS],
                         size_t ret_bytes[NUM_ARRAYS]) {
    attn_model_info *info = &model->info;
    size_t hidden;

    if (!size_mul(info->num_heads, info->head_size, &hidden))
        return false;
    list_arrays(model, hidden, arrays);
    info->parameters = info->memory = 0;
    for (size_t i = 0; i < NUM_ARRAYS; i++) {
        size_t rows = arrays[i].rows, columns = arrays[i].columns, floats = 0, offset;
        if (!arrays[i].present)
            continue;
        if (rows > INT_MAX || columns > INT_MAX ||
            !reserve_floats(&floats, rows, columns, &offset) ||
            !size_mul(floats, sizeof(float), &ret_bytes[i]) ||
            !size_add(info->memory, ret_bytes[i], &info->memory))
            return false;
        info->parameters += rows * columns; /* at most `floats` */
    }
    info->bytes = info->parameters * sizeof(float);
    return true;
}

attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model) {
    struct weight_array arrays[NUM_ARRAYS];
    size_t bytes[NUM_ARRAYS];
    attn_status status = ATTN_E_OVERFLOW;

    attn_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return ATTN_E_NOMEM;
    model->info = *info;
    model->info.engine = model->info.cpu = model->info.precision = "none";
    if (!count_arrays(model, arrays, bytes))
        goto fail;

    status = ATTN_E_NOMEM;
    for (size_t i = 0; i < NUM_ARRAYS; i++) {
        if (!arrays[i].present)
            continue;
        *arrays[i].pointer = aligned_alloc(ATTN_ALIGNMENT, bytes[i]);
        if (*arrays[i].pointer == NULL)
            goto fail;
        memset(*arrays[i].pointer, 0, bytes[i]);
    }
    *ret_model = model;
    return ATTN_OK;

fail:
    attn_model_destroy(model);
    return status;
}

/* Releases the weights as they were loaded, where they still are. */
static void release_arrays(attn_model *model) {
    struct weight_array arrays[NUM_ARRAYS];

    list_arrays(model, 0, arrays);
    for (size_t i = 0; i < NUM_ARRAYS; i++) {
        free(*arrays[i].pointer);
        *arrays[i].pointer = NULL;
    }
}

void attn_model_destroy(attn_model *model) {
    if (model == NULL)
        return;
    engine_deinit(&model->engine);
    release_arrays(model);
    free(model);
}

const attn_model_info *attn_model_get_info(const attn_model *model) {
    return &model->info;
}

/* Returns what an engine is made from; all of it is borrowed. */
static struct layer_weights borrow_weights(const attn_model *model) {
    return (struct layer_weights){
        .weights = {model->query_weight, model->key_weight, model->value_weight,
                    model->output_weight},
        .biases = {model->query_bias, model->key_bias, model->value_bias,
                   model->output_bias},
        .additive_query = model->additive_query,
        .additive_key = model->additive_key,
        .additive_score = model->additive_score,
    };
}

static void describe_engine(const struct engine *engine, attn_model_info *info) {
    info->engine = engine->native ? "native" : "openblas";
    info->cpu = engine->kernels->name;
    info->precision = engine->kernels->k_step == 2 ? "bf16" : "f32";
}

/* Replaces the model's engine, and updates its info. */
static void use_engine(attn_model *model, const struct engine *engine) {
    struct weight_array arrays[NUM_ARRAYS];
    size_t bytes[NUM_ARRAYS];

    describe_engine(engine, &model->info);
    engine_deinit(&model->engine);
    model->engine = *engine;
    count_arrays(model, arrays,
                 bytes); /* succeeds, since it did for attn_model_create() */
    model->info.memory = engine->bytes;
    for (size_t i = 0; i < NUM_ARRAYS; i++)
        model->info.memory += *arrays[i].pointer != NULL ? bytes[i] : 0;
}

attn_status attn_model_set_engine(attn_model *model, const attn_engine_options *options,
                                  attn_error *ret_error) {
    const struct layer_weights weights = borrow_weights(model);
    struct engine engine;

    if (model->query_weight == NULL)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "model '%s' was loaded to serve only, and has no weights to "
                         "make another engine from; load it without serve_only",
                         model->info.name);
    attn_status status = engine_make(&model->info, &weights, options, &engine, ret_error);
    if (status == ATTN_OK)
        use_engine(model, &engine);
    return status;
}

attn_status model_use_openblas(attn_model *model, const char *cpu,
                               attn_error *ret_error) {
    const attn_engine_options openblas = {.engine = "openblas", .cpu = cpu};
    struct layer_weights weights = borrow_weights(model);
    struct engine engine;

    weights.owned[0] = &model->query_weight;
    weights.owned[1] = &model->key_weight;
    attn_status status =
        engine_make(&model->info, &weights, &openblas, &engine, ret_error);
    if (status == ATTN_OK)
        use_engine(model, &engine);
    return status;
}

attn_status model_pack(attn_model *model, const attn_engine_options *options,
                       attn_error *ret_error) {
    float **const folded = model->engine.folded;
    struct layer_weights weights = borrow_weights(model);
    struct engine engine;

    weights.owned[0] = &model->query_weight;
    weights.owned[1] = &model->key_weight;
    weights.owned[2] = &model->value_weight;
    weights.owned[3] = &model->output_weight;
    if (folded[0] != NULL) {
        weights.weights[0] = folded[0];
        weights.weights[1] = folded[1];
        weights.biases[0] = model->engine.to_query.bias;
        weights.biases[1] = model->engine.to_key.bias;
        weights.owned[0] = &folded[0];
        weights.owned[1] = &folded[1];
        weights.additive_query = weights.additive_key = NULL;
    }
    attn_status status = engine_make(&model->info, &weights, options, &engine, ret_error);
    if (status != ATTN_OK)
        return status;

    release_arrays(model);
    use_engine(model, &engine);
    return ATTN_OK;
}

attn_status model_describe(const attn_model_info *info,
                           const attn_engine_options *options, attn_model_info *ret_info,
                           attn_error *ret_error) {
    attn_model model = {.info = *info}; /* never gets its arrays */
    struct weight_array arrays[NUM_ARRAYS];
    size_t bytes[NUM_ARRAYS];
    struct engine engine;

    if (!count_arrays(&model, arrays, bytes))
        return error_set(ret_error, ATTN_E_OVERFLOW,
                         "cannot create a model of these sizes: %s",
                         attn_status_text(ATTN_E_OVERFLOW));
    attn_status status = engine_plan(&model.info, options, &engine, ret_error);
    if (status != ATTN_OK)
        return status;

    describe_engine(&engine, &model.info);
    if (engine.native)
        model.info.memory = 0;
    else if (info->scoring == ATTN_ADDITIVE) /* these are released once folded */
        model.info.memory -= bytes[QUERY_WEIGHT] + bytes[KEY_WEIGHT];
    model.info.memory += engine.bytes;
    *ret_info = model.info;
    return ATTN_OK;
}
