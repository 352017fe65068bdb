/* SPDX-License-Identifier: Apache-2.0 */
/* create.c: reads the weights of a layer directly into a new model; only folding and
 * transposing need further memory. */
#include "weights/layer/create.h"

#include "base/error.h"
#include "base/machine.h"
#include "weights/layer/make.h"

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
    if (described.footprint.bytes > memory)
        return error_set(ret_error, ATTN_E_OVERFLOW,
                         "its weights need %zu bytes as float32, but this process may "
                         "use %zu; use a smaller model, or more memory",
                         described.footprint.bytes, memory);
    status = attn_model_create(info, &model);
    if (status != ATTN_OK)
        return error_set(ret_error, status, "cannot create a model of these sizes: %s",
                         attn_status_text(status));

    status = layer_read_model(layer, model, ret_error);
    if (status == ATTN_OK)
        *ret_model = model;
    else
        attn_model_destroy(model);
    return status;
}

/* Replaces a model that disagrees with OpenBLAS by one that computes with it. The weights
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
    return model_use_openblas(*model, cpu, ret_error);
}

attn_status layer_create_model(const struct layer *layer, const attn_model_info *info,
                               const attn_engine_options *engine, attn_model **ret_model,
                               attn_error *ret_error) {
    bool serve_only = engine != NULL && engine->serve_only, agree = true;
    attn_model *model = NULL;

    attn_status status = create_unprepared(layer, info, &model, ret_error);
    if (ret_model == NULL) {
        attn_model_destroy(model);
        return status;
    }
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
