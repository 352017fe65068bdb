/* SPDX-License-Identifier: Apache-2.0 */
/* make.c: puts a layer into the engine's terms. Pairs of interleaved rotations are moved
 * apart, and norms that multiply by 1 + w become norms that multiply by w. Weights are
 * read directly into a new model; only folding and transposing need further memory. */
#include "weights/layer/make.h"

#include "base/error.h"
#include "base/machine.h"
#include "math/rows/entering.h"
#include "safetensors/digest.h"
#include "weights/layer/distance.h"
#include "weights/layer/frequencies.h"
#include "weights/layer/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void layer_complete(struct layer *layer) {
    const struct layer_linear *linears = layer->linears;
    const struct safetensors_tensor *before = layer->norm_before.weight;
    const struct safetensors_tensor *additive = layer->additive[0];
    attn_model_info *info = &layer->info;
    size_t query = info->latent.query > 0 ? ATTN_LATENT_QUERY : ATTN_QUERY;
    bool latent_keys = info->latent.key > 0;

    info->width.query = linears[query].in_size;
    info->width.key = linears[latent_keys ? ATTN_LATENT_KEY : ATTN_KEY].in_size;
    info->width.value = linears[latent_keys ? ATTN_LATENT_KEY : ATTN_VALUE].in_size;
    info->width.out = linears[ATTN_OUTPUT].head_rows;
    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++) {
        info->linears[i].weight = linears[i].weight != NULL;
        info->linears[i].bias = linears[i].bias != NULL || linears[i].stage_bias != NULL;
    }

    if (additive != NULL) {
        info->score.kind = ATTN_ADDITIVE;
        info->width.additive = additive->shape[0];
    }
    info->score.sinks = layer->sinks != NULL;
    info->head_norm.bias = layer->query_norm.bias != NULL || layer->key_norm.bias != NULL;
    info->pre_norm.bias = layer->norm_before.bias != NULL;
    info->pre_norm.known = info->pre_norm.kind != ATTN_NORM_NONE &&
                           (before != NULL || layer->norm_before.bare);
    snprintf(info->pre_norm.name, sizeof info->pre_norm.name, "%s",
             before != NULL ? before->name : "");
}

/* Adds how the weights are stored, where they have scales. */
static void describe_scales(const struct layer *layer, char text[FEATURES_TEXT_SIZE]) {
    const struct safetensors_tensor *scaled = NULL;
    size_t used = strlen(text), num_plain = 0;
    char blocks[64];

    for (size_t i = ATTN_NUM_LINEARS; i-- > 0;) {
        const struct safetensors_tensor *weight = layer->linears[i].weight;
        num_plain += weight != NULL && weight->scale == NULL;
        scaled = weight != NULL && weight->scale != NULL ? weight : scaled;
    }
    if (scaled == NULL)
        return;

    size_t rows = scaled->scale->rows, columns = scaled->scale->columns;
    bool whole_rows = columns == scaled->shape[1];
    snprintf(blocks, sizeof blocks, "scales of %zu x %zu", rows, columns);
    snprintf(text + used, FEATURES_TEXT_SIZE - used, ", FP8%s, %s",
             num_plain > 0 ? " in part" : "",
             whole_rows && rows == scaled->shape[0] ? "one scale a matrix"
             : whole_rows && rows == 1              ? "one scale a row"
                                                    : blocks);
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

    features_list(&layer->info, &origin, &features);
    snprintf(ret_text, FEATURES_TEXT_SIZE, "%s", features.text);
    describe_scales(layer, ret_text);
}

/* Reads the weights of a norm: 1 where it has none; each head may have a tensor. */
static attn_status read_norm_weight(const struct layer_norm *norm,
                                    const struct model_array *array,
                                    attn_error *ret_error) {
    const struct safetensors_tensor *weight = norm->weight;
    size_t count = array->rows, size = weight != NULL ? weight->elements : count;
    size_t tensors = weight == NULL ? 0 : norm->of_heads == NULL ? 1 : count / size;
    attn_status status = ATTN_OK;

    for (size_t h = 0; status == ATTN_OK && h < tensors; h++)
        status = safetensors_read_all(tensor_view_find_head(norm->of_heads, weight, h),
                                      array->numbers + h * size, ret_error);
    for (size_t i = 0; i < count && (norm->plus_one || weight == NULL); i++)
        array->numbers[i] = weight != NULL ? array->numbers[i] + 1 : 1;
    return status;
}

/* Reads the vectors of norms and sinks that the model has, and its additive scoring. */
static attn_status read_vectors(const struct layer *layer, attn_model *model,
                                attn_error *ret_error) {
    const struct layer_norm *query = &layer->query_norm, *key = &layer->key_norm;
    const struct layer_norm *before = &layer->norm_before;
    const struct {
        size_t array;
        const struct layer_norm *norm; /* whose weights these are; else NULL */
        const struct safetensors_tensor *stored;
    } vectors[] = {
        {MODEL_QUERY_NORM, query, NULL},
        {MODEL_KEY_NORM, key, NULL},
        {MODEL_OUT_NORM, &layer->out_norm, NULL},
        {MODEL_PRE_NORM, before, NULL},
        {MODEL_QUERY_NORM_BIAS, NULL, query->bias},
        {MODEL_KEY_NORM_BIAS, NULL, key->bias},
        {MODEL_LATENT_QUERY_NORM, NULL, layer->latent_query_norm.weight},
        {MODEL_LATENT_KEY_NORM, NULL, layer->latent_key_norm.weight},
        {MODEL_PRE_NORM_BIAS, NULL, before->bias},
        {MODEL_SINKS, NULL, layer->sinks},
        {MODEL_ADDITIVE_QUERY, NULL, layer->additive[0]},
        {MODEL_ADDITIVE_KEY, NULL, layer->additive[1]},
        {MODEL_ADDITIVE_SCORE, NULL, layer->additive[2]},
    };
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const struct model_array *array = &model->arrays[vectors[i].array];
        if (status != ATTN_OK || array->rows == 0)
            continue;
        status = vectors[i].norm != NULL
                     ? read_norm_weight(vectors[i].norm, array, ret_error)
                     : safetensors_read_all(vectors[i].stored, array->numbers, ret_error);
    }
    if (model->arrays[MODEL_PRE_NORM_INVERSE].rows > 0)
        entering_invert(model->arrays[MODEL_PRE_NORM].numbers, model->info.width.query,
                        model->arrays[MODEL_PRE_NORM_INVERSE].numbers);
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

/* Multiplies values by their factor. */
static void scale_values(const struct layer *layer, attn_model *model) {
    const size_t scaled[] = {MODEL_WEIGHT(ATTN_VALUE), MODEL_BIAS(ATTN_VALUE)};

    for (size_t i = 0; i < 2; i++) {
        const struct model_array *array = &model->arrays[scaled[i]];
        for (size_t k = 0; k < array->rows * array->columns; k++)
            array->numbers[k] *= (float)layer->value_factor;
    }
}

/* Moves heads of `rows` rows of `columns` numbers apart, in place: `before` rows of 0
 * come in front of each head, and `after` numbers of 0 behind each row. */
static void spread_rows(float *weight, size_t num_heads, size_t rows, size_t columns,
                        size_t before, size_t after) {
    size_t to_columns = columns + after;

    /* no row moves to where one lies that has yet to be moved, from the last one on */
    for (size_t h = num_heads; h-- > 0;) {
        float *head = weight + h * (before + rows) * to_columns;
        for (size_t row = rows; row-- > 0;) {
            float *to = head + (before + row) * to_columns;
            memmove(to, weight + (h * rows + row) * columns, columns * sizeof *to);
            memset(to + columns, 0, after * sizeof *to);
        }
        memset(head, 0, before * to_columns * sizeof *head);
    }
}

/* Moves the last `count` rows of each head [size, columns] before the others. */
static attn_status move_last_rows(float *weight, size_t num_heads, size_t size,
                                  size_t columns, size_t count) {
    size_t moved = count * columns, others = (size - count) * columns;
    float *rows = calloc(moved + 1, sizeof *rows);

    if (rows == NULL)
        return ATTN_E_NOMEM;
    for (size_t h = 0; h < num_heads; h++) {
        float *head = weight + h * size * columns;
        memcpy(rows, head + others, moved * sizeof *rows);
        memmove(head + moved, head, others * sizeof *rows);
        memcpy(head, rows, moved * sizeof *rows);
    }
    free(rows);
    return ATTN_OK;
}

/* Lays out the weights of latent attention, which were read as the file has them, at the
 * begin of each array: key weights [H * (S - r), C], value weights [H * D, C], and query
 * weights whose heads end with the r rotated rows, where r is info.latent.shared and
 * C + r is info.latent.key. Then rows of all three read whole latent rows, and heads of
 * queries and keys begin with the rotated rows. Those of keys are rows of the identity
 * matrix, which copy the head that all share from the end of a latent row. So the
 * attention is an ordinary one, of as many key heads as query heads. */
static attn_status lay_out_latent(attn_model *model, attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    size_t heads = info->num_heads, size = info->width.score,
           shared = info->latent.shared;
    size_t columns = info->latent.key, plain = columns - shared;
    size_t query_size = info->latent.query > 0 ? info->latent.query : info->width.query;

    spread_rows(model_weight(model, ATTN_VALUE), heads, info->width.head, plain, 0,
                shared);
    spread_rows(model_weight(model, ATTN_KEY), heads, size - shared, plain, shared,
                shared);
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < shared; i++)
            model_weight(model, ATTN_KEY)[(h * size + i) * columns + plain + i] = 1;
    }
    if (move_last_rows(model_weight(model, ATTN_QUERY), heads, size, query_size,
                       shared) != ATTN_OK)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to move rows");
    return ATTN_OK;
}

/* Reads all numbers of a layer, in an order that depends on nothing but the layer. */
static attn_status read_arrays(const struct layer *layer, attn_model *model,
                               attn_error *ret_error) {
    attn_bias bias = layer->info.score.bias;
    size_t heads = layer->info.num_heads;
    attn_status status = ATTN_OK;

    for (attn_linear i = 0; i < ATTN_NUM_LINEARS && status == ATTN_OK; i++) {
        if (layer->linears[i].weight != NULL)
            status = gather_linear(&layer->linears[i], model_weight(model, i),
                                   model_bias(model, i), ret_error);
    }
    if (status == ATTN_OK)
        status = read_vectors(layer, model, ret_error);
    if (status == ATTN_OK && layer->value_factor != 1)
        scale_values(layer, model);
    if (status == ATTN_OK && layer->info.latent.key > 0)
        status = lay_out_latent(model, ret_error);
    if (status == ATTN_OK && (layer->rotation.interleaved || layer->rotation.backward))
        status = separate_pairs(layer, model, ret_error);
    if (status == ATTN_OK && layer->rotation.dims > 0)
        status = frequencies_fill(&layer->rotation, &model->rotation, ret_error);
    if (model->rotation.axis_of != NULL)
        rotation_fill_axes(&layer->rotation, model->rotation.axis_of);
    if (status == ATTN_OK && bias == ATTN_BIAS_BUCKETS)
        status = distance_read_biases(
            &layer->bias, heads, model->arrays[MODEL_DISTANCE_BIAS].numbers, ret_error);
    else if (status == ATTN_OK && bias == ATTN_BIAS_CONTENT)
        status = distance_read_content(layer, model, ret_error);
    else if (status == ATTN_OK && bias != ATTN_BIAS_NONE)
        distance_fill_slopes(bias, heads, model->arrays[MODEL_SLOPES].numbers);
    return status;
}

/* Adds numbers as float32, since not all CPUs need have the last bits of the same
 * float64. NULL adds nothing. */
static void digest_numbers(struct digest *digest, const double *numbers, size_t count) {
    for (size_t i = 0; numbers != NULL && i < count; i++)
        digest_add(digest, &(float){(float)numbers[i]}, sizeof(float));
}

/* Adds the options that change what is computed with the weights. Others, or other words
 * for features, make another fingerprint of a file, so replicas of two versions would
 * look different. */
static void digest_options(struct digest *digest, const struct layer *layer,
                           const struct model_rotation *rotation) {
    const attn_model_info *info = &layer->info;
    size_t pairs = info->rotation.size / 2;
    char features[FEATURES_TEXT_SIZE];
    const double numbers[] = {(double)info->num_heads,
                              (double)info->num_kv_heads,
                              (double)info->context_length,
                              (double)info->width.query,
                              (double)info->width.key,
                              (double)info->width.value,
                              (double)info->width.out,
                              (double)info->width.score,
                              (double)info->width.additive,
                              (double)info->pre_norm.applied,
                              info->latent.eps,
                              info->head_norm.eps,
                              info->value_norm.eps,
                              info->out_norm.eps,
                              info->pre_norm.eps,
                              rotation->magnitude,
                              (double)rotation->max_length,
                              rotation->factor,
                              (double)layer->rotation.backward};

    layer_describe_features(layer, features);
    digest_add(digest, features, strlen(features));
    digest_numbers(digest, numbers, sizeof numbers / sizeof numbers[0]);
    digest_numbers(digest, rotation->frequencies, pairs);
    digest_numbers(digest, rotation->long_frequencies, pairs);
    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++)
        digest_add(digest, layer->linears[i].transposed ? "t" : "-", 1);
}

attn_status layer_read_model(const struct layer *layer, attn_model *model,
                             attn_error *ret_error) {
    struct digest digest;

    digest_init(&digest);
    struct digest *before = digest_enter(&digest);
    attn_status status = read_arrays(layer, model, ret_error);
    digest_enter(before);
    digest_options(&digest, layer, &model->rotation);
    digest_end(&digest, model->info.fingerprint);
    model->info.loaded = (long long)time(NULL);
    return status;
}

/* Creates a model with the weights of the layer and without an engine, unless they exceed
 * the memory that this process may use. */
static attn_status create_unprepared(const struct layer *layer,
                                     const attn_model_info *info, attn_model **ret_model,
                                     attn_error *ret_error) {
    size_t memory = machine_memory("");
    attn_model_info described;
    attn_model *model;

    attn_status status = model_describe(info, NULL, &described, ret_error);
    if (status != ATTN_OK)
        return status;
    if (described.footprint.bytes > memory) {
        error_set(ret_error, ATTN_E_OVERFLOW,
                  "its weights need %zu bytes as float32, but this process may use %zu; "
                  "use a smaller model, or more memory",
                  described.footprint.bytes, memory);
        return ATTN_E_OVERFLOW;
    }
    status = attn_model_create(info, &model);
    if (status != ATTN_OK) {
        error_set(ret_error, status, "cannot create a model of these sizes: %s",
                  attn_status_text(status));
        return status;
    }

    status = layer_read_model(layer, model, ret_error);
    if (status == ATTN_OK)
        *ret_model = model;
    else
        attn_model_destroy(model);
    return status;
}

/* Replaces a model that disagrees with blas.h by one that computes with it. The weights
 * were released when its engine was made, so they are read once more. */
static attn_status replace_engine(const struct layer *layer, const attn_model_info *info,
                                  attn_model **model, attn_error *ret_error) {
    const char *cpu = (*model)->info.engine.cpu; /* a constant */
    double difference = (*model)->info.engine.difference;

    attn_model_destroy(*model);
    *model = NULL;
    attn_status status = create_unprepared(layer, info, model, ret_error);
    if (status != ATTN_OK)
        return status;
    (*model)->info.engine.difference = difference;
    return model_use_blas(*model, cpu, ret_error);
}

attn_status layer_check(struct layer *layer, attn_error *ret_error) {
    attn_model *model = NULL;

    attn_status status = create_unprepared(layer, &layer->info, &model, ret_error);
    if (status == ATTN_OK)
        memcpy(layer->info.fingerprint, model->info.fingerprint, DIGEST_TEXT_SIZE);
    attn_model_destroy(model);
    return status;
}

attn_status layer_create_model(const struct layer *layer, const attn_model_info *info,
                               const attn_engine_options *engine, attn_model **ret_model,
                               attn_error *ret_error) {
    bool serve_only = engine != NULL && engine->serve_only, agree = true;
    attn_model *model = NULL;

    attn_status status = create_unprepared(layer, info, &model, ret_error);
    if (status == ATTN_OK && serve_only)
        status = model_prepare_to_serve(model, engine, &agree, ret_error);
    else if (status == ATTN_OK)
        status = attn_model_set_engine(model, engine, ret_error);
    if (status == ATTN_OK && !agree)
        status = replace_engine(layer, info, &model, ret_error);

    if (status == ATTN_OK)
        *ret_model = model;
    else
        attn_model_destroy(model);
    return status;
}
