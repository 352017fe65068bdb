/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: the memory of a model's weights, and its engine. */
#include "math/model.h"

#include "base/error.h"
#include "base/heap.h"
#include "math/reserve.h"

#include <attnd/attention.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of model_list_arrays(). */
enum { QUERY_WEIGHT = 0, KEY_WEIGHT = 2, NUM_ARRAYS = MODEL_ARRAYS };

void model_list_arrays(attn_model *model, struct model_array ret_arrays[MODEL_ARRAYS]) {
    const attn_model_info *info = &model->info;
    size_t heads = info->num_heads, kv_heads = info->num_kv_heads;
    size_t size = info->width.score, hidden = heads * info->width.head;
    size_t queries = heads * size, keys = kv_heads * size;
    size_t values = kv_heads * info->width.head, latent_key = info->latent.key;
    bool latents = info->latent.query > 0, key_latents = latent_key > 0;
    bool additive = info->score.kind == ATTN_ADDITIVE;
    bool head_norm = info->head_norm.kind != ATTN_NORM_NONE,
         each = info->head_norm.whole || info->head_norm.per_head;
    bool head_norm_bias = head_norm && info->head_norm.bias;

    const struct model_array arrays[NUM_ARRAYS] = {
        {&model->query_weight, true, queries,
         latents ? info->latent.query : info->width.query},
        {&model->query_bias, info->projection.query_bias, queries, 1},
        {&model->key_weight, true, keys, key_latents ? latent_key : info->width.key},
        {&model->key_bias, info->projection.key_bias, keys, 1},
        {&model->value_weight, true, values,
         key_latents ? latent_key : info->width.value},
        {&model->value_bias, info->projection.value_bias, values, 1},
        {&model->output_weight, info->projection.output, info->width.out, hidden},
        {&model->output_bias, info->projection.output_bias, info->width.out, 1},
        {&model->additive_query, additive, info->width.additive, size},
        {&model->additive_key, additive, info->width.additive, size},
        {&model->additive_score, additive, info->width.additive, 1},
        {&model->gate_weight, info->projection.gate, hidden, info->width.query},
        {&model->gate_bias, info->projection.gate && info->projection.gate_bias, hidden,
         1},
        {&model->latent_query_weight, latents, info->latent.query, info->width.query},
        {&model->latent_query_bias, latents && info->latent.query_bias,
         info->latent.query, 1},
        {&model->latent_key_weight, key_latents, latent_key, info->width.key},
        {&model->latent_key_bias, key_latents && info->latent.key_bias, latent_key, 1},
        {&model->sinks, info->score.sinks, heads, 1},
        {&model->alibi_slopes,
         info->score.bias == ATTN_BIAS_ALIBI ||
             info->score.bias == ATTN_BIAS_ALIBI_ROUNDED,
         heads, 1},
        {&model->distance_bias, info->score.bias == ATTN_BIAS_BUCKETS, heads,
         2 * info->score.bias_distance + 1},
        {&model->query_norm_weight, head_norm, each ? queries : size, 1},
        {&model->query_norm_bias, head_norm_bias, each ? queries : size, 1},
        {&model->key_norm_weight, head_norm, each ? keys : size, 1},
        {&model->key_norm_bias, head_norm_bias, each ? keys : size, 1},
        {&model->latent_query_norm, latents, info->latent.query, 1},
        {&model->latent_key_norm, key_latents, latent_key - info->latent.shared, 1},
        {&model->out_norm_weight, info->out_norm.kind != ATTN_NORM_NONE, hidden, 1},
        {&model->pre_norm_weight, info->pre_norm.applied, info->width.query, 1},
        {&model->pre_norm_bias, info->pre_norm.applied && info->pre_norm.bias,
         info->width.query, 1},
    };
    memcpy(ret_arrays, arrays, sizeof arrays);
}

static bool has_long_frequencies(const attn_model_info *info) {
    return info->rotation.size > 0 && strcmp(info->rotation.type, "longrope") == 0;
}

/* Bytes of the lists of a rotation. */
static size_t rotation_bytes(const attn_model_info *info) {
    size_t of_pair = has_long_frequencies(info) ? 2 * sizeof(double) : sizeof(double);
    return info->rotation.size / 2 * (of_pair + model_has_sections(info));
}

/* Returns whether some numbers of a latent row are normed, and keys and values can be
 * made of the same ones. A gate is made of rows as they came. */
static bool latents_fit(const attn_model_info *info) {
    if (info->latent.query > 0 && info->projection.gate)
        return false;
    return info->latent.key == 0 || (info->latent.shared < info->latent.key &&
                                     info->width.value == info->width.key);
}

/* Sets parameters, bytes and memory of model->info. The bytes of each array are rounded
 * up, as aligned_alloc() demands. */
static bool count_arrays(attn_model *model, struct model_array arrays[NUM_ARRAYS],
                         size_t ret_bytes[NUM_ARRAYS]) {
    attn_model_info *info = &model->info;
    size_t hidden, queries;

    if (!size_mul(info->num_heads, info->width.head, &hidden) ||
        !size_mul(info->num_heads, info->width.score, &queries) ||
        info->num_kv_heads > info->num_heads || info->score.bias_distance > INT_MAX / 4 ||
        info->rotation.size > info->width.score ||
        (info->rotation.values && info->rotation.size > info->width.head) ||
        !latents_fit(info))
        return false;
    model_list_arrays(model, arrays);
    info->footprint.parameters = 0;
    info->footprint.memory = rotation_bytes(info);
    for (size_t i = 0; i < NUM_ARRAYS; i++) {
        size_t rows = arrays[i].rows, columns = arrays[i].columns, floats = 0, offset;
        if (!arrays[i].present)
            continue;
        if (rows > INT_MAX || columns > INT_MAX ||
            !reserve_floats(&floats, rows, columns, &offset) ||
            !size_mul(floats, sizeof(float), &ret_bytes[i]) ||
            !size_add(info->footprint.memory, ret_bytes[i], &info->footprint.memory))
            return false;
        info->footprint.parameters += rows * columns; /* at most `floats` */
    }
    info->footprint.bytes = info->footprint.parameters * sizeof(float);
    return true;
}

/* Sets what 0 stands for. */
static void set_defaults(attn_model_info *info) {
    if (info->num_kv_heads == 0)
        info->num_kv_heads = info->num_heads;
    if (info->rotation.axes == 0)
        info->rotation.axes = 1;
    if (info->width.score == 0)
        info->width.score = info->width.head;
    if (info->score.scale == 0)
        info->score.scale = 1 / sqrt((double)info->width.score);
}

/* Allocates the lists of a rotation that the model has. */
static bool create_rotation(attn_model *model) {
    struct model_rotation *rotation = &model->rotation;
    size_t count = model->info.rotation.size / 2;
    bool sections = model_has_sections(&model->info);

    if (count == 0)
        return true;
    rotation->magnitude = 1;
    rotation->frequencies = calloc(count, sizeof *rotation->frequencies);
    if (has_long_frequencies(&model->info))
        rotation->long_frequencies = calloc(count, sizeof *rotation->long_frequencies);
    if (sections)
        rotation->axis_of = calloc(count, sizeof *rotation->axis_of);
    return rotation->frequencies != NULL &&
           (rotation->long_frequencies != NULL || !has_long_frequencies(&model->info)) &&
           (rotation->axis_of != NULL || !sections);
}

attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model) {
    struct model_array arrays[NUM_ARRAYS];
    size_t bytes[NUM_ARRAYS];
    attn_status status = ATTN_E_OVERFLOW;

    attn_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return ATTN_E_NOMEM;
    model->info = *info;
    model->info.engine.name = model->info.engine.cpu = model->info.engine.precision =
        "none";
    set_defaults(&model->info);
    if (!count_arrays(model, arrays, bytes))
        goto fail;

    status = ATTN_E_NOMEM;
    if (!create_rotation(model))
        goto fail;
    for (size_t i = 0; i < NUM_ARRAYS; i++) {
        if (!arrays[i].present)
            continue;
        *arrays[i].pointer = heap_alloc(bytes[i]);
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

/* Releases the first `count` arrays, where they still are. */
static void release_arrays(attn_model *model, size_t count) {
    struct model_array arrays[NUM_ARRAYS];

    model_list_arrays(model, arrays);
    for (size_t i = 0; i < count; i++) {
        free(*arrays[i].pointer);
        *arrays[i].pointer = NULL;
    }
}

void attn_model_destroy(attn_model *model) {
    if (model == NULL)
        return;
    engine_deinit(&model->engine);
    release_arrays(model, NUM_ARRAYS);
    free(model->rotation.frequencies);
    free(model->rotation.long_frequencies);
    free(model->rotation.axis_of);
    free(model);
}

const attn_model_info *attn_model_get_info(const attn_model *model) {
    return &model->info;
}

/* Returns what an engine is made from; all of it is borrowed. */
static struct layer_weights borrow_weights(const attn_model *model) {
    return (struct layer_weights){
        .weights = {model->query_weight, model->key_weight, model->value_weight,
                    model->output_weight, model->gate_weight, model->latent_query_weight,
                    model->latent_key_weight},
        .biases = {model->query_bias, model->key_bias, model->value_bias,
                   model->output_bias, model->gate_bias, model->latent_query_bias,
                   model->latent_key_bias},
        .additive_query = model->additive_query,
        .additive_key = model->additive_key,
        .additive_score = model->additive_score,
    };
}

static void describe_engine(const struct engine *engine, attn_model_info *info) {
    info->engine.name = engine->native ? "native" : "openblas";
    info->engine.cpu = engine->kernels->name;
    info->engine.precision = engine->kernels->k_step == 2 ? "bf16" : "f32";
}

/* Replaces the model's engine, and updates its info. */
static void use_engine(attn_model *model, const struct engine *engine) {
    struct model_array arrays[NUM_ARRAYS];
    size_t bytes[NUM_ARRAYS];

    describe_engine(engine, &model->info);
    engine_deinit(&model->engine);
    model->engine = *engine;
    count_arrays(model, arrays,
                 bytes); /* succeeds, since it did for attn_model_create() */
    model->info.footprint.memory += engine->bytes;
    for (size_t i = 0; i < MODEL_ARRAYS_PACKED; i++)
        model->info.footprint.memory -=
            arrays[i].present && *arrays[i].pointer == NULL ? bytes[i] : 0;
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
    weights.owned[4] = &model->gate_weight;
    weights.owned[5] = &model->latent_query_weight;
    weights.owned[6] = &model->latent_key_weight;
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

    release_arrays(model, MODEL_ARRAYS_PACKED);
    use_engine(model, &engine);
    return ATTN_OK;
}

attn_status model_describe(const attn_model_info *info,
                           const attn_engine_options *options, attn_model_info *ret_info,
                           attn_error *ret_error) {
    attn_model model = {.info = *info}; /* never gets its arrays */
    struct model_array arrays[NUM_ARRAYS];
    size_t bytes[NUM_ARRAYS];
    struct engine engine;

    set_defaults(&model.info);
    if (!count_arrays(&model, arrays, bytes))
        return error_set(ret_error, ATTN_E_OVERFLOW,
                         "cannot create a model of these sizes: %s",
                         attn_status_text(ATTN_E_OVERFLOW));
    attn_status status = engine_plan(&model.info, options, &engine, ret_error);
    if (status != ATTN_OK)
        return status;

    describe_engine(&engine, &model.info);
    for (size_t i = 0; engine.native && i < MODEL_ARRAYS_PACKED; i++)
        model.info.footprint.memory -= arrays[i].present ? bytes[i] : 0;
    if (!engine.native && info->score.kind == ATTN_ADDITIVE) /* released once folded */
        model.info.footprint.memory -= bytes[QUERY_WEIGHT] + bytes[KEY_WEIGHT];
    model.info.footprint.memory += engine.bytes;
    *ret_info = model.info;
    return ATTN_OK;
}
