/* SPDX-License-Identifier: Apache-2.0 */
/* assemble.c: reads the weights of a checkpoint directly into a new model; only folding
 * needs further memory. Or reads them to check them, and keeps none. H heads of size D; M
 * is the width between the stages of a two-stage projection. */
#include "weights/assemble.h"

#include "base/error.h"
#include "base/machine.h"
#include "base/pace.h"
#include "math/fold.h"
#include "math/model.h"
#include "weights/sizes.h"

#include <stdlib.h>

/* The memory that folding one projection needs, in one block. */
struct fold_scratch {
    float *stage;      /* [M, in] */
    float *stage_bias; /* [M] */
    float *head;       /* [D, M] */
    float *head_bias;  /* [D] */
};

/* Reads one head of a two-stage projection, W = head W_stage, b = head b_stage + b_head,
 * into ret_weight [D, in] and, unless that is NULL, ret_bias [D]. The stage must have
 * been read. */
static attn_status fold_head(const struct layer_sizes *sizes, size_t which, size_t head,
                             struct fold_scratch *scratch, float *ret_weight,
                             float *ret_bias) {
    const struct projection *projection = &sizes->projections[which];
    const struct linear_names *names = &sizes->layout->linears[LINEAR_HEAD_QUERY + which];
    const struct safetensors_tensor *weight =
        tensor_view_find_head(&sizes->view, names->weight, head);
    const struct safetensors_tensor *bias =
        tensor_view_find_head(&sizes->view, names->bias, head);
    size_t head_size = sizes->info.width.head;
    size_t stage_size = projection->weight->shape[0];
    size_t in_size = projection->in_size;

    attn_status status = safetensors_read_all(weight, scratch->head, sizes->ret_error);
    if (status == ATTN_OK)
        status = safetensors_read_all(bias, scratch->head_bias, sizes->ret_error);
    if (status != ATTN_OK)
        return status;

    fold_product(scratch->head, scratch->stage, NULL, head_size, stage_size, in_size,
                 ret_weight);
    bool finite = pace_finite_end(ret_weight, head_size * in_size) == head_size * in_size;
    if (ret_bias != NULL) {
        fold_product(scratch->head, scratch->stage_bias, scratch->head_bias, head_size,
                     stage_size, 1, ret_bias);
        finite = finite && pace_finite_end(ret_bias, head_size) == head_size;
    }
    if (!finite)
        return error_set(sizes->ret_error, ATTN_E_VALUE,
                         "tensor '%.80s' times '%.80s' (or its bias) "
                         "is too large for float32",
                         weight->name, projection->weight->name);
    return ATTN_OK;
}

/* Reads a two-stage projection. The outputs are as in read_projection(). */
static attn_status fold_heads(const struct layer_sizes *sizes, size_t which,
                              float *ret_weight, float *ret_bias) {
    const struct projection *projection = &sizes->projections[which];
    const struct safetensors_tensor *stage = projection->weight;
    size_t head_size = sizes->info.width.head, in_size = projection->in_size;
    size_t stage_size = stage->shape[0];

    /* tensors of the file have these sizes, so the sum does not overflow */
    float *memory =
        calloc(stage_size * (in_size + 1) + head_size * (stage_size + 1), sizeof *memory);
    if (memory == NULL)
        return error_set(sizes->ret_error, ATTN_E_NOMEM,
                         "not enough memory to fold '%.80s'", stage->name);
    struct fold_scratch scratch = {.stage = memory};
    scratch.stage_bias = scratch.stage + stage_size * in_size;
    scratch.head = scratch.stage_bias + stage_size;
    scratch.head_bias = scratch.head + head_size * stage_size;

    attn_status status = safetensors_read_all(stage, scratch.stage, sizes->ret_error);
    if (status == ATTN_OK)
        status =
            safetensors_read_all(projection->bias, scratch.stage_bias, sizes->ret_error);
    for (size_t head = 0; status == ATTN_OK && head < sizes->info.num_heads; head++)
        status = fold_head(sizes, which, head, &scratch,
                           ret_weight + head * head_size * in_size,
                           ret_bias == NULL ? NULL : ret_bias + head * head_size);
    free(memory);
    return status;
}

/* Reads a projection whose heads have weights of their own. The outputs are as in
 * read_projection(). */
static attn_status read_heads(const struct layer_sizes *sizes, size_t which,
                              float *ret_weight, float *ret_bias) {
    const struct linear_names *names = &sizes->layout->linears[LINEAR_HEAD_QUERY + which];
    size_t head_size = sizes->info.width.head;
    size_t in_size = sizes->projections[which].in_size;
    attn_status status = ATTN_OK;

    for (size_t head = 0; status == ATTN_OK && head < sizes->info.num_heads; head++) {
        status = safetensors_read_all(
            tensor_view_find_head(&sizes->view, names->weight, head),
            ret_weight + head * head_size * in_size, sizes->ret_error);
        if (status == ATTN_OK && ret_bias != NULL)
            status = safetensors_read_all(
                tensor_view_find_head(&sizes->view, names->bias, head),
                ret_bias + head * head_size, sizes->ret_error);
    }
    return status;
}

/* Reads weight [H*D, in] and bias [H*D], the latter unless it is NULL. */
static attn_status read_projection(const struct layer_sizes *sizes, size_t which,
                                   float *ret_weight, float *ret_bias) {
    const struct projection *projection = &sizes->projections[which];
    if (sizes->layout->linears[LINEAR_HEAD_QUERY].weight != NULL)
        return projection->weight != NULL
                   ? fold_heads(sizes, which, ret_weight, ret_bias)
                   : read_heads(sizes, which, ret_weight, ret_bias);

    size_t hidden = sizes->hidden, in_size = projection->in_size;
    attn_status status =
        safetensors_read(projection->weight, projection->first_row * in_size,
                         hidden * in_size, ret_weight, sizes->ret_error);
    if (status != ATTN_OK || ret_bias == NULL)
        return status;
    return safetensors_read(projection->bias, projection->first_bias_row, hidden,
                            ret_bias, sizes->ret_error);
}

/* Reads all weights of a struct layer_sizes into the model. */
static attn_status read_weights(const void *context, attn_model *model,
                                attn_error *ret_error) {
    const struct layer_sizes *sizes = context;
    const struct {
        const struct safetensors_tensor *stored;
        size_t array;
    } others[] = {
        {sizes->others[0], MODEL_WEIGHT(ATTN_OUTPUT)},
        {sizes->others[1], MODEL_BIAS(ATTN_OUTPUT)},
        {sizes->others[2], MODEL_ADDITIVE_QUERY},
        {sizes->others[3], MODEL_ADDITIVE_KEY},
        {sizes->others[4], MODEL_ADDITIVE_SCORE},
    };
    attn_status status = ATTN_OK;

    for (attn_linear i = ATTN_QUERY; i <= ATTN_VALUE && status == ATTN_OK; i++)
        status = read_projection(sizes, i, model_weight(model, i), model_bias(model, i));
    for (size_t i = 0; i < 5 && status == ATTN_OK; i++)
        status = safetensors_read_all(others[i].stored,
                                      model->arrays[others[i].array].numbers, ret_error);
    return status;
}

attn_status assemble_check_tensors(const struct layer_sizes *sizes) {
    const struct tensor_view *view = &sizes->view;
    float values[4096];
    size_t most = sizeof values / sizeof values[0];

    for (size_t i = 0; i < view->count; i++) {
        const struct safetensors_tensor *tensor = &view->tensors[i];
        if (!layout_uses(sizes->layout, tensor->name + view->prefix_size))
            continue;
        for (size_t first = 0; first < tensor->elements; first += most) {
            size_t left = tensor->elements - first;
            attn_status status = safetensors_read(
                tensor, first, left < most ? left : most, values, sizes->ret_error);
            if (status != ATTN_OK)
                return status;
        }
    }
    return ATTN_OK;
}

/* Checks that the weights of a model of these sizes fit in the memory that this process
 * may use, before any is taken. */
static attn_status check_memory(const attn_model_info *info, attn_error *ret_error) {
    attn_model_info described;
    size_t memory = machine_memory("");
    attn_status status = model_describe(info, NULL, &described, ret_error);

    if (status != ATTN_OK || described.footprint.bytes <= memory)
        return status;
    return error_set(ret_error, ATTN_E_OVERFLOW,
                     "its weights need %zu bytes as float32, but this process may use "
                     "%zu; use a smaller model, or more memory",
                     described.footprint.bytes, memory);
}

/* Creates a model with the weights of the source. */
static attn_status load_weights(const struct weight_source *source,
                                attn_model **ret_model, attn_error *ret_error) {
    attn_model *model;
    attn_status status = check_memory(source->info, ret_error);
    if (status != ATTN_OK)
        return status;
    status = attn_model_create(source->info, &model);
    if (status != ATTN_OK) {
        error_set(ret_error, status, "cannot create a model of these sizes: %s",
                  attn_status_text(status));
        return status;
    }

    status = source->read(source->context, model, ret_error);
    if (status != ATTN_OK) {
        attn_model_destroy(model);
        return status;
    }
    *ret_model = model;
    return ATTN_OK;
}

attn_status assemble_check_weights(const struct weight_source *source,
                                   attn_error *ret_error) {
    attn_model *model;
    attn_status status = load_weights(source, &model, ret_error);
    if (status == ATTN_OK)
        attn_model_destroy(model);
    return status;
}

/* Makes the engine of a model that serves only. When it disagrees with OpenBLAS, the
 * weights have been released, so the source is read once more, for OpenBLAS. */
static attn_status prepare_to_serve(const struct weight_source *source,
                                    const attn_engine_options *engine, attn_model **model,
                                    attn_error *ret_error) {
    const attn_model_info *info = attn_model_get_info(*model);
    bool agree;

    attn_status status = model_prepare_to_serve(*model, engine, &agree, ret_error);
    if (status != ATTN_OK || agree)
        return status;

    const char *cpu = info->engine.cpu; /* a constant */
    double difference = info->engine.difference;
    attn_model_destroy(*model);
    *model = NULL;
    status = load_weights(source, model, ret_error);
    if (status != ATTN_OK)
        return status;
    (*model)->info.engine.difference = difference;
    return model_use_openblas(*model, cpu, ret_error);
}

attn_status assemble_from_source(const struct weight_source *source,
                                 const attn_engine_options *engine,
                                 attn_model **ret_model, attn_error *ret_error) {
    attn_model *model = NULL;

    attn_status status = load_weights(source, &model, ret_error);
    if (status != ATTN_OK)
        return status;
    if (engine != NULL && engine->serve_only)
        status = prepare_to_serve(source, engine, &model, ret_error);
    else
        status = attn_model_set_engine(model, engine, ret_error);
    if (status != ATTN_OK) {
        attn_model_destroy(model);
        return status;
    }
    *ret_model = model;
    return ATTN_OK;
}

attn_status assemble_model(const struct layer_sizes *sizes,
                           const attn_engine_options *engine, attn_model **ret_model) {
    const struct weight_source source = {
        .info = &sizes->info, .read = read_weights, .context = sizes};
    return assemble_from_source(&source, engine, ret_model, sizes->ret_error);
}
