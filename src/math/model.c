/* SPDX-License-Identifier: Apache-2.0 */
/* model.c: the memory of a model's weights, and its engine. */
#include "math/model.h"

#include "base/error.h"
#include "base/heap.h"
#include "math/blas.h"
#include "math/reserve.h"
#include "math/rows/entering.h"

#include <attnd/attention.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define POSITION_ROWS_MAX (1 << 24) /* which float32 can count */

/* Returns how many weights the norm of so many heads has. */
static size_t head_norm_size(const attn_model_info *info, size_t heads) {
    bool each = info->head_norm.whole || info->head_norm.per_head;
    bool normed = info->head_norm.kind != ATTN_NORM_NONE;
    return normed ? (each ? heads : 1) * info->width.score : 0;
}

/* Sets the shapes of the arrays of a model of the sizes in model->info. */
static void list_arrays(attn_model *model) {
    const attn_model_info *info = &model->info;
    size_t heads = info->num_heads, size = info->width.score;
    bool buckets = info->score.bias == ATTN_BIAS_BUCKETS;
    bool content = info->score.bias == ATTN_BIAS_CONTENT;
    bool slopes = info->score.bias != ATTN_BIAS_NONE && !buckets && !content;
    size_t positions = info->score.position_rows;
    size_t queries = head_norm_size(info, heads);
    size_t keys = head_norm_size(info, info->num_kv_heads);
    size_t out_norm = info->out_norm.kind != ATTN_NORM_NONE ? heads : 0;
    size_t known = info->pre_norm.known ? info->width.query : 0;
    size_t pre_norm = info->pre_norm.applied ? info->width.query : known;
    size_t additive = info->score.kind == ATTN_ADDITIVE ? info->width.additive : 0;
    const size_t shapes[MODEL_NUM_ARRAYS][2] = {
        [MODEL_ADDITIVE_QUERY] = {additive, size},
        [MODEL_ADDITIVE_KEY] = {additive, size},
        [MODEL_ADDITIVE_SCORE] = {additive, 1},
        [MODEL_SINKS] = {info->score.sinks ? heads : 0, 1},
        [MODEL_SLOPES] = {slopes ? heads : 0, 1},
        [MODEL_DISTANCE_BIAS] = {buckets ? heads : content,
                                 2 * info->score.bias_distance + 1},
        [MODEL_POSITION_KEYS] = {info->score.position_keys ? positions : 0, heads * size},
        [MODEL_POSITION_QUERIES] = {info->score.position_queries ? positions : 0,
                                    heads * size},
        [MODEL_QUERY_NORM] = {queries, 1},
        [MODEL_QUERY_NORM_BIAS] = {info->head_norm.bias ? queries : 0, 1},
        [MODEL_KEY_NORM] = {keys, 1},
        [MODEL_KEY_NORM_BIAS] = {info->head_norm.bias ? keys : 0, 1},
        [MODEL_LATENT_QUERY_NORM] = {info->latent.query, 1},
        [MODEL_LATENT_KEY_NORM] = {info->latent.key - info->latent.shared, 1},
        [MODEL_OUT_NORM] = {out_norm * info->width.head, 1},
        [MODEL_PRE_NORM] = {pre_norm, 1},
        [MODEL_PRE_NORM_BIAS] = {info->pre_norm.bias ? pre_norm : 0, 1},
        [MODEL_PRE_NORM_INVERSE] = {known, 1},
    };

    for (size_t i = MODEL_ADDITIVE_QUERY; i < MODEL_NUM_ARRAYS; i++)
        model->arrays[i] =
            (struct model_array){.rows = shapes[i][0], .columns = shapes[i][1]};
    for (attn_linear i = 0; i < ATTN_NUM_LINEARS; i++) {
        struct linear linear = engine_size_linear(info, i);
        size_t biases = info->linears[i].bias ? linear.out : 0;
        model->arrays[MODEL_WEIGHT(i)] =
            (struct model_array){.rows = linear.out, .columns = linear.in};
        model->arrays[MODEL_BIAS(i)] = (struct model_array){.rows = biases, .columns = 1};
    }
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
    if (info->latent.query > 0 && info->linears[ATTN_GATE].weight)
        return false;
    if (info->latent.key == 0)
        return info->latent.shared == 0;
    return info->latent.shared < info->latent.key && info->width.value == info->width.key;
}

/* Sets the bytes of an array. Returns false when a size is too large. */
static bool size_array(struct model_array *array) {
    size_t floats = 0, offset;

    return array->rows <= INT_MAX && array->columns <= INT_MAX &&
           reserve_floats(&floats, array->rows, array->columns, &offset) &&
           size_mul(floats, sizeof(float), &array->bytes);
}

/* Sets the shapes of all arrays, and parameters, bytes and memory of model->info. */
static bool count_arrays(attn_model *model) {
    attn_model_info *info = &model->info;
    size_t hidden, queries;

    if (!size_mul(info->num_heads, info->width.head, &hidden) ||
        !size_mul(info->num_heads, info->width.score, &queries) ||
        info->num_kv_heads > info->num_heads || info->score.bias_distance > INT_MAX / 4 ||
        info->score.position_rows > POSITION_ROWS_MAX ||
        info->rotation.size > info->width.score ||
        (info->rotation.values && info->rotation.size > info->width.head) ||
        !latents_fit(info))
        return false;
    list_arrays(model);
    info->footprint.parameters = 0;
    info->footprint.memory = rotation_bytes(info);
    for (size_t i = 0; i < MODEL_NUM_ARRAYS; i++) {
        struct model_array *array = &model->arrays[i];
        if (!size_array(array) ||
            !size_add(info->footprint.memory, array->bytes, &info->footprint.memory))
            return false;
        if (i != MODEL_PRE_NORM_INVERSE) /* which is derived */
            info->footprint.parameters += array->rows * array->columns;
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
    for (attn_linear i = ATTN_QUERY; i <= ATTN_VALUE; i++)
        info->linears[i].weight = true;
    info->linears[ATTN_LATENT_QUERY].weight = info->latent.query > 0;
    info->linears[ATTN_LATENT_KEY].weight = info->latent.key > 0;
    for (attn_linear i = 0; i < ATTN_NUM_LINEARS; i++)
        info->linears[i].bias = info->linears[i].bias && info->linears[i].weight;
}

/* Allocates the lists of a rotation that the model has, one after the other. */
static bool create_rotation(attn_model *model) {
    struct model_rotation *rotation = &model->rotation;
    size_t count = model->info.rotation.size / 2;

    if (count == 0)
        return true;
    double *end = calloc(1, rotation_bytes(&model->info));
    if (end == NULL)
        return false;
    rotation->magnitude = 1;
    rotation->frequencies = end;
    end += count;
    if (has_long_frequencies(&model->info)) {
        rotation->long_frequencies = end;
        end += count;
    }
    if (model_has_sections(&model->info))
        rotation->axis_of = (unsigned char *)end;
    return true;
}

attn_status attn_model_create(const attn_model_info *info, attn_model **ret_model) {
    attn_status status = ATTN_E_OVERFLOW;
    struct features features;

    attn_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return ATTN_E_NOMEM;
    model->info = *info;
    model->info.engine.name = model->info.engine.cpu = model->info.engine.precision =
        "none";
    set_defaults(&model->info);
    features_list(&model->info, NULL, &features);
    model->effects = features.effects;
    if (!count_arrays(model))
        goto fail;

    status = ATTN_E_NOMEM;
    if (!create_rotation(model))
        goto fail;
    for (size_t i = 0; i < MODEL_NUM_ARRAYS; i++) {
        struct model_array *array = &model->arrays[i];
        if (array->bytes == 0)
            continue;
        array->numbers = heap_alloc(array->bytes);
        if (array->numbers == NULL)
            goto fail;
        memset(array->numbers, 0, array->bytes);
    }
    *ret_model = model;
    return ATTN_OK;

fail:
    attn_model_destroy(model);
    return status;
}

/* Releases the first `count` arrays, where they still are. */
static void release_arrays(attn_model *model, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(model->arrays[i].numbers);
        model->arrays[i].numbers = NULL;
    }
}

void attn_model_destroy(attn_model *model) {
    if (model == NULL)
        return;
    engine_deinit(&model->engine);
    release_arrays(model, MODEL_NUM_ARRAYS);
    free(model->rotation.frequencies); /* and the lists behind them */
    free(model);
}

const char *model_find_note(const attn_model *model, const float *queries, size_t count) {
    static const char twice[MODEL_NOTE_MAX] =
        "queries look as if the norm before the layer was applied to them, and it is "
        "applied again; send hidden states, or serve with pre_norm=false";
    static const char never[MODEL_NOTE_MAX] =
        "queries look as if the norm before the layer was not applied to them; apply it, "
        "or serve without pre_norm=false";
    const attn_model_info *info = &model->info;
    const struct norm norm = {info->pre_norm.kind == ATTN_NORM_LAYER, info->pre_norm.eps,
                              model->arrays[MODEL_PRE_NORM].numbers,
                              model->arrays[MODEL_PRE_NORM_BIAS].numbers,
                              info->width.query};

    const float *inverse = model->arrays[MODEL_PRE_NORM_INVERSE].numbers;

    /* A norm without weights leaves rows as they are when it is applied once more. */
    bool is_bare = info->pre_norm.name[0] == '\0', applied = info->pre_norm.applied;
    if (inverse == NULL || (applied && is_bare) ||
        !entering_is(applied ? ENTERING_BEHIND : ENTERING_BEFORE, &norm, inverse, queries,
                     count))
        return NULL;
    return applied ? twice : never;
}

const attn_model_info *attn_model_get_info(const attn_model *model) {
    return &model->info;
}

/* Returns what an engine is made from. All of it is borrowed, but for the weights when
 * they are `owned`. */
static struct layer_weights list_weights(attn_model *model, bool owned) {
    const struct model_array *arrays = model->arrays;
    struct layer_weights weights = {
        .additive = {arrays[MODEL_ADDITIVE_QUERY].numbers,
                     arrays[MODEL_ADDITIVE_KEY].numbers},
        .additive_score = arrays[MODEL_ADDITIVE_SCORE].numbers,
    };

    for (attn_linear i = 0; i < ATTN_NUM_LINEARS; i++) {
        weights.weights[i] = model_weight(model, i);
        weights.biases[i] = model_bias(model, i);
        weights.owned[i] = owned ? &model->arrays[MODEL_WEIGHT(i)].numbers : NULL;
    }
    return weights;
}

static void describe_engine(const struct engine *engine, attn_model_info *info) {
    info->engine.name = engine->native ? "native" : blas_engine;
    info->engine.cpu = engine->kernels->name;
    info->engine.precision = engine->kernels->k_step == 2 ? "bf16" : "f32";
}

/* Replaces the model's engine, releases the first `released` arrays, and updates its
 * info. */
static attn_status remake_engine(attn_model *model, const struct layer_weights *weights,
                                 const attn_engine_options *options, size_t released,
                                 attn_error *ret_error) {
    struct engine engine;
    attn_status status = engine_make(&model->info, weights, options, &engine, ret_error);
    if (status != ATTN_OK)
        return status;

    release_arrays(model, released);
    describe_engine(&engine, &model->info);
    engine_deinit(&model->engine);
    model->engine = engine;
    model->info.footprint.memory = engine.bytes + rotation_bytes(&model->info);
    for (size_t i = 0; i < MODEL_NUM_ARRAYS; i++) {
        if (model->arrays[i].numbers != NULL)
            model->info.footprint.memory += model->arrays[i].bytes;
    }
    return ATTN_OK;
}

attn_status attn_model_set_engine(attn_model *model, const attn_engine_options *options,
                                  attn_error *ret_error) {
    const struct layer_weights weights = list_weights(model, false);

    if (model_weight(model, ATTN_QUERY) == NULL)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "model '%s' was loaded to serve only, and has no weights to "
                         "make another engine from; load it without serve_only",
                         model->info.name);
    return remake_engine(model, &weights, options, 0, ret_error);
}

attn_status model_use_blas(attn_model *model, const char *cpu, attn_error *ret_error) {
    const attn_engine_options blas = {.engine = blas_engine, .cpu = cpu};
    const struct layer_weights weights = list_weights(model, true);

    return remake_engine(model, &weights, &blas, 0, ret_error);
}

attn_status model_pack(attn_model *model, const attn_engine_options *options,
                       attn_error *ret_error) {
    float **const folded = model->engine.folded;
    struct layer_weights weights = list_weights(model, true);

    for (attn_linear i = ATTN_QUERY; i <= ATTN_KEY && folded[i] != NULL; i++) {
        weights.weights[i] = folded[i];
        weights.biases[i] = model->engine.linears[i].bias;
        weights.owned[i] = &folded[i];
        weights.additive[i] = NULL;
    }
    return remake_engine(model, &weights, options, MODEL_NUM_PACKED, ret_error);
}

attn_status model_describe(const attn_model_info *info,
                           const attn_engine_options *options, attn_model_info *ret_info,
                           attn_error *ret_error) {
    attn_model model = {.info = *info}; /* never gets its arrays */
    struct engine engine;

    set_defaults(&model.info);
    if (!count_arrays(&model))
        return error_set(ret_error, ATTN_E_OVERFLOW,
                         "cannot create a model of these sizes: %s",
                         attn_status_text(ATTN_E_OVERFLOW));
    attn_status status = engine_plan(&model.info, options, &engine, ret_error);
    if (status != ATTN_OK)
        return status;

    describe_engine(&engine, &model.info);
    model.info.footprint.memory += engine.bytes;
    for (size_t i = 0; i < MODEL_NUM_PACKED; i++) {
        bool folded = info->score.kind == ATTN_ADDITIVE &&
                      (i == MODEL_WEIGHT(ATTN_QUERY) || i == MODEL_WEIGHT(ATTN_KEY));
        if (engine.native || folded) /* it is released then */
            model.info.footprint.memory -= model.arrays[i].bytes;
    }
    *ret_info = model.info;
    return ATTN_OK;
}
