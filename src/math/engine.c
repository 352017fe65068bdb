/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c: chooses the engine of a layer, folds additive scoring into its projections,
 * and packs its weights into panels. */
#include "math/engine.h"

#include "base/error.h"
#include "math/blas.h"
#include "math/fold.h"
#include "math/reserve.h"

#include <stdlib.h>
#include <string.h>

void engine_deinit(struct engine *engine) {
    free(engine->folded);
    free(engine->packed);
    *engine = (struct engine){.kernels = NULL};
}

/* Folds the additive weight [A, D] into each head of the projection before it:
 * ret_weight [H*A, in] = additive * weight, ret_bias [H*A] = additive * bias. */
static void fold_heads(const attn_model_info *info, const float *additive,
                       const struct linear *linear, float *ret_weight, float *ret_bias) {
    size_t a_size = info->additive_size, d_size = info->head_size, in = linear->in;

    for (size_t h = 0; h < info->num_heads; h++) {
        const float *weight = linear->weight + h * d_size * in;
        fold_product(additive, weight, NULL, a_size, d_size, in,
                     ret_weight + h * a_size * in);
        if (linear->bias != NULL)
            fold_product(additive, linear->bias + h * d_size, NULL, a_size, d_size, 1,
                         ret_bias + h * a_size);
        else
            memset(ret_bias + h * a_size, 0, a_size * sizeof *ret_bias);
    }
}

static attn_status fold_additive(const attn_model_info *info,
                                 const struct layer_weights *weights,
                                 struct engine *engine) {
    size_t rows, widths, floats;

    if (!size_mul(info->num_heads, info->additive_size, &rows) ||
        !size_add(info->query_size, info->key_size, &widths) ||
        !size_add(widths, 2, &widths) || !size_mul(rows, widths, &floats) ||
        !size_add(floats, info->additive_size, &floats) ||
        floats > SIZE_MAX / sizeof(float))
        return ATTN_E_OVERFLOW;
    engine->folded = malloc(floats * sizeof(float));
    if (engine->folded == NULL)
        return ATTN_E_NOMEM;

    float *query = engine->folded, *key = query + rows * info->query_size;
    float *query_bias = key + rows * info->key_size, *key_bias = query_bias + rows;
    float *score = key_bias + rows;
    fold_heads(info, weights->additive_query, &engine->to_query, query, query_bias);
    fold_heads(info, weights->additive_key, &engine->to_key, key, key_bias);
    memcpy(score, weights->additive_score, info->additive_size * sizeof *score);

    engine->additive_score = score;
    engine->to_query.weight = query;
    engine->to_query.bias = query_bias;
    engine->to_key.weight = key;
    engine->to_key.bias = key_bias;
    engine->to_query.out = engine->to_key.out = rows;
    engine->bytes += floats * sizeof(float);
    return ATTN_OK;
}

/* Reserves memory for the panels of `linear`, and for its biases as one more row. */
static bool reserve_panels(const struct linear *linear, const struct kernels *kernels,
                           size_t *floats, size_t *ret_offset) {
    size_t columns = kernels->columns, k_step = kernels->k_step, padded, depth;

    if (linear->weight == NULL)
        return true;
    return size_add(linear->out, columns - 1, &padded) &&
           size_mul(padded / columns, columns, &padded) &&
           size_add(linear->in, k_step - 1, &depth) &&
           size_add(depth / k_step, 1, &depth) &&
           reserve_floats(floats, padded, depth, ret_offset);
}

/* Packs one projection at `memory`. `panel` is scratch for one panel of float32. */
static void pack_linear(struct linear *linear, const struct kernels *kernels,
                        float *panel, float *memory) {
    size_t columns = kernels->columns, num_panels = (linear->out + columns - 1) / columns;
    size_t in = linear->in, depth = (in + kernels->k_step - 1) / kernels->k_step;

    if (linear->weight == NULL)
        return;
    float *bias = memory + num_panels * columns * depth;
    for (size_t n = 0; n < num_panels; n++) {
        float *packed = memory + n * columns * depth;
        float *transposed = kernels->pack_pairs_bf16 != NULL ? panel : packed;

        for (size_t c = 0; c < columns; c++) {
            size_t o = n * columns + c;
            bool real = o < linear->out;
            for (size_t k = 0; k < in; k++)
                transposed[k * columns + c] = real ? linear->weight[o * in + k] : 0.0F;
            bias[o] = real && linear->bias != NULL ? linear->bias[o] : 0.0F;
        }
        if (kernels->pack_pairs_bf16 != NULL)
            kernels->pack_pairs_bf16(panel, columns, in, columns, packed, columns);
    }
    linear->panels = (struct panels){memory, bias, linear->out, depth};
}

/* Packs all projections of a native engine. */
static attn_status pack_weights(struct engine *engine) {
    struct linear *const linears[] = {&engine->to_query, &engine->to_key,
                                      &engine->to_value, &engine->to_output};
    const struct kernels *kernels = engine->kernels;
    size_t offsets[4] = {0}, floats = 0, deepest = 0, panel_bytes;

    for (size_t i = 0; i < 4; i++) {
        deepest = linears[i]->in > deepest ? linears[i]->in : deepest;
        if (!reserve_panels(linears[i], kernels, &floats, &offsets[i]) ||
            floats > SIZE_MAX / sizeof(float))
            return ATTN_E_OVERFLOW;
    }
    if (!size_mul(deepest, kernels->columns * sizeof(float), &panel_bytes))
        return ATTN_E_OVERFLOW;

    float *panel = malloc(panel_bytes);
    engine->packed = aligned_alloc(ATTN_ALIGNMENT, floats * sizeof(float));
    if (engine->packed == NULL || panel == NULL) {
        free(panel);
        return ATTN_E_NOMEM;
    }
    for (size_t i = 0; i < 4; i++)
        pack_linear(linears[i], kernels, panel, engine->packed + offsets[i]);
    engine->bytes += floats * sizeof(float);
    free(panel);
    return ATTN_OK;
}

/* Refuses kernels that this machine lacks, and says what to ask for instead. */
static attn_status refuse_kernels(const char *cpu, bool bf16, attn_error *ret_error) {
    if (bf16 && kernels_get(cpu, false) != NULL)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "precision bf16 needs a CPU with AVX512-BF16 and cpu 'auto' or "
                         "'avx512'; cpu '%s' has only f32 on this machine",
                         cpu);
    return error_set(
        ret_error, ATTN_E_UNSUPPORTED,
        "this build or CPU has no kernels for '%s'; the best it has are '%s'", cpu,
        kernels_available(0)->name);
}

/* Decides on engine, instruction set and precision. */
static attn_status choose_kernels(struct engine *engine,
                                  const attn_engine_options *options,
                                  attn_error *ret_error) {
    const char *name = "auto", *cpu = "auto", *precision = "f32";

    if (options != NULL && options->engine != NULL)
        name = options->engine;
    if (options != NULL && options->cpu != NULL)
        cpu = options->cpu;
    if (options != NULL && options->precision != NULL)
        precision = options->precision;

    bool automatic = strcmp(name, "auto") == 0, openblas = strcmp(name, "openblas") == 0;
    bool bf16 = strcmp(precision, "bf16") == 0;
    engine->kernels = kernels_get(cpu, bf16 && !openblas);
    if (engine->kernels == NULL)
        return refuse_kernels(cpu, bf16, ret_error);
    if (!automatic && !openblas && strcmp(name, "native") != 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "unknown engine '%s'; use auto, native or openblas", name);
    if (!bf16 && strcmp(precision, "f32") != 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "unknown precision '%s'; use f32 or bf16", precision);
    if (bf16 && openblas)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "engine openblas computes in f32 only; use precision f32, or "
                         "engine native");

    engine->native =
        automatic ? strcmp(engine->kernels->name, "portable") != 0 : !openblas;
    return ATTN_OK;
}

attn_status engine_make(const attn_model_info *info, const struct layer_weights *weights,
                        const attn_engine_options *options, struct engine *ret_engine,
                        attn_error *ret_error) {
    struct engine engine = {
        .score_size = info->head_size,
        .to_query = weights->to_query,
        .to_key = weights->to_key,
        .to_value = weights->to_value,
        .to_output = weights->to_output,
    };

    attn_status status = choose_kernels(&engine, options, ret_error);
    if (status != ATTN_OK)
        return status;

    if (info->scoring == ATTN_ADDITIVE) {
        engine.score_size = info->additive_size;
        status = fold_additive(info, weights, &engine);
    }
    if (status == ATTN_OK && engine.native)
        status = pack_weights(&engine);
    if (status != ATTN_OK) {
        engine_deinit(&engine);
        return error_set(ret_error, status, "model '%s': %s", info->name,
                         attn_status_text(status));
    }
    *ret_engine = engine;
    return ATTN_OK;
}

void engine_forget_weights(struct engine *engine) {
    struct linear *const linears[] = {&engine->to_query, &engine->to_key,
                                      &engine->to_value, &engine->to_output};

    for (size_t i = 0; i < 4; i++)
        linears[i]->weight = linears[i]->bias = NULL;
}

size_t engine_step(const struct engine *engine, const struct linear *linear) {
    return engine->native ? engine->kernels->columns : linear->out;
}

/* engine_project() by cblas. */
static void project_by_blas(const struct linear *linear, struct range columns,
                            const struct range *depth, size_t num_depths, const float *x,
                            size_t x_ld, size_t rows, float *y, size_t y_ld) {
    size_t width = columns.end - columns.first;

    y += columns.first;
    for (size_t r = 0; depth[0].first == depth[0].end && r < rows; r++)
        memset(y + r * y_ld, 0, width * sizeof *y); /* the sum of nothing */
    for (size_t i = 0; i < num_depths; i++) {
        const float *weight = linear->weight + columns.first * linear->in;
        size_t first = depth[i].first, words = depth[i].end - first;
        if (words > 0)
            blas_multiply_transposed(rows, width, words, 1.0F,
                                     (struct blas_matrix){x + first, x_ld},
                                     (struct blas_matrix){weight + first, linear->in},
                                     i > 0 ? 1.0F : 0.0F, y, y_ld);
    }
    for (size_t r = 0; linear->bias != NULL && r < rows; r++) {
        for (size_t o = 0; o < width; o++)
            y[r * y_ld + o] += linear->bias[columns.first + o];
    }
}

void engine_project(const struct engine *engine, const struct linear *linear,
                    struct range columns, const struct range *depth, size_t num_depths,
                    const float *x, size_t x_ld, size_t rows, float *y, size_t y_ld) {
    size_t step = engine->kernels->columns;

    if (engine->native)
        engine->kernels->project(&linear->panels, columns.first / step,
                                 (columns.end + step - 1) / step, depth, num_depths, x,
                                 x_ld, rows, y, y_ld);
    else
        project_by_blas(linear, columns, depth, num_depths, x, x_ld, rows, y, y_ld);
}
