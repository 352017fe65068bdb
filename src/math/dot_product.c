/* SPDX-License-Identifier: Apache-2.0 */
/* dot_product.c: makes the layer without projections. */
#include "math/dot_product.h"

#include "base/error.h"
#include "base/size.h"
#include "math/packed.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>

/* Checks the options, of which num_kv_heads and value_size are not 0 any more. */
static attn_status check_options(const attn_dot_product *options, attn_error *ret_error) {
    size_t heads = options->num_heads, kv_heads = options->num_kv_heads;
    size_t widest = size_max(options->head_size, options->value_size), width;

    if (heads == 0 || options->head_size == 0)
        return error_set(ret_error, ATTN_E_SHAPE,
                         "num_heads is %zu and the head size %zu, but neither may be 0",
                         heads, options->head_size);
    if (heads % kv_heads != 0)
        return error_set(ret_error, ATTN_E_SHAPE,
                         "num_heads is %zu, which is not a multiple of num_kv_heads %zu",
                         heads, kv_heads);
    if (!isfinite(options->scale) || fabs(options->scale) > ATTN_SCALE_MAX)
        return error_set(ret_error, ATTN_E_VALUE, "scale is not a finite float32");
    if (!(options->softcap >= 0) || options->softcap > ATTN_SCALE_MAX)
        return error_set(ret_error, ATTN_E_VALUE,
                         "softcap is %g, but must be positive and finite, or 0 for none",
                         options->softcap);
    if (!size_mul(heads, widest, &width) || width > INT_MAX)
        return error_set(ret_error, ATTN_E_OVERFLOW,
                         "%zu heads of size %zu are too large", heads, widest);
    return ATTN_OK;
}

attn_status dot_product_init(const attn_dot_product *options, attn_model *ret_model,
                             attn_error *ret_error) {
    attn_dot_product all = *options;
    const attn_engine_options native = {.engine = "native", .cpu = options->cpu};

    if (all.num_kv_heads == 0)
        all.num_kv_heads = all.num_heads;
    if (all.value_size == 0)
        all.value_size = all.head_size;
    attn_status status = check_options(&all, ret_error);
    if (status != ATTN_OK)
        return status;

    attn_model model = {
        .info = {.name = "dot-product",
                 .layout = "dot-product",
                 .engine = {.name = "native", .precision = "f32"},
                 .num_heads = all.num_heads,
                 .num_kv_heads = all.num_kv_heads,
                 .width = {.query = all.num_heads * all.head_size,
                           .key = all.num_kv_heads * all.head_size,
                           .value = all.num_kv_heads * all.value_size,
                           .out = all.num_heads * all.value_size,
                           .head = all.value_size,
                           .score = all.head_size},
                 .projection.given = true,
                 .score = {.scale = all.scale,
                           .softcap = all.softcap,
                           .bias = all.slopes != NULL ? ATTN_BIAS_ALIBI : ATTN_BIAS_NONE,
                           .sinks = all.sinks != NULL}},
        .effects.indirect = true,
        /* Nothing writes to the arrays of a model. */
        .arrays = {[MODEL_SINKS].numbers = (float *)(uintptr_t)all.sinks,
                   [MODEL_SLOPES].numbers = (float *)(uintptr_t)all.slopes},
    };
    struct engine engine;
    status = engine_plan(&model.info, &native, &engine, ret_error);
    if (status != ATTN_OK)
        return status;
    /* Matrix tiles only project. */
    model.engine = (struct engine){.kernels = engine.kernels->in_float32,
                                   .native = true,
                                   .score_size = all.head_size};
    model.info.engine.cpu = model.engine.kernels->name;
    *ret_model = model;
    return ATTN_OK;
}

attn_status attn_dot_product_plan(const attn_dot_product *options,
                                  const attn_request *request, attn_sizes *ret_sizes,
                                  attn_error *ret_error) {
    const struct attn_packed *packed = request->packed;
    bool has_values = packed != NULL ? packed->values != NULL : request->values != NULL;
    attn_model model;

    if (!has_values && (!request->omit_outputs || request->need_heads))
        return error_set(ret_error, ATTN_E_VALUE,
                         "outputs or heads are wanted, but there are no values");
    attn_status status = dot_product_init(options, &model, ret_error);
    return status == ATTN_OK ? attn_plan(&model, request, ret_sizes, ret_error) : status;
}

void attn_dot_product_run(const attn_dot_product *options, const attn_request *request,
                          const attn_sizes *sizes, void *scratch,
                          const attn_result *result) {
    attn_model model;

    if (dot_product_init(options, &model, NULL) == ATTN_OK) /* as when it was planned */
        attn_run(&model, request, sizes, scratch, result);
}
