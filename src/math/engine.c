/* SPDX-License-Identifier: Apache-2.0 */
/* engine.c: chooses the engine of a layer, folds additive scoring into its projections,
 * and packs its weights into panels. */
#include "math/engine.h"

#include "base/error.h"
#include "base/heap.h"
#include "math/blas.h"
#include "math/fold.h"
#include "math/reserve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct linear engine_size_linear(const attn_model_info *info, attn_linear which) {
    size_t heads = info->num_heads, hidden = heads * info->width.head;
    size_t query = info->latent.query, key = info->latent.key;
    const struct linear linears[ATTN_NUM_LINEARS] = {
        [ATTN_QUERY] = {.out = heads * info->width.score,
                        .in = query > 0 ? query : info->width.query},
        [ATTN_KEY] = {.out = info->num_kv_heads * info->width.score,
                      .in = key > 0 ? key : info->width.key},
        [ATTN_VALUE] = {.out = info->num_kv_heads * info->width.head,
                        .in = key > 0 ? key : info->width.value},
        [ATTN_OUTPUT] = {.out = info->width.out, .in = hidden},
        [ATTN_GATE] = {.out = hidden, .in = info->width.query},
        [ATTN_LATENT_QUERY] = {.out = query, .in = info->width.query},
        [ATTN_LATENT_KEY] = {.out = key, .in = info->width.key},
    };

    return info->linears[which].weight ? linears[which] : (struct linear){.out = 0};
}

void engine_deinit(struct engine *engine) {
    free(engine->folded[0]);
    free(engine->folded[1]);
    free(engine->additive_score);
    free(engine->packed);
    *engine = (struct engine){.kernels = NULL};
}

static void release_weight(float **owned) {
    free(*owned);
    *owned = NULL;
}

/* Folds the additive weight [A, S] into each head of the projection before it: *linear
 * then has the weights [H*A, in] = additive * weight and the biases [H*A] = additive *
 * bias. They are in *ret_folded, which the caller frees. */
static attn_status fold_linear(const attn_model_info *info, const float *additive,
                               struct linear *linear, float **ret_folded) {
    size_t a_size = info->width.additive, d_size = info->width.score, in = linear->in;
    size_t rows = linear->out, weights, floats;

    if (!size_mul(rows, in, &weights) || !size_add(weights, rows, &floats))
        return ATTN_E_OVERFLOW;
    float *folded = calloc(floats, sizeof *folded);
    if (folded == NULL)
        return ATTN_E_NOMEM;

    float *bias = folded + weights;
    for (size_t h = 0; h < rows / a_size; h++) {
        fold_product(additive, linear->weight + h * d_size * in, NULL, a_size, d_size, in,
                     folded + h * a_size * in);
        if (linear->bias != NULL)
            fold_product(additive, linear->bias + h * d_size, NULL, a_size, d_size, 1,
                         bias + h * a_size);
    }
    linear->weight = folded;
    linear->bias = bias;
    *ret_folded = folded;
    return ATTN_OK;
}

/* Folds additive scoring into the projections of queries and keys, where there is any.
 * Weights that are owned are released, and the folded ones are owned in their place. */
static attn_status fold_additive(const attn_model_info *info,
                                 const struct layer_weights *weights,
                                 float **owned[ATTN_NUM_LINEARS], struct engine *engine) {
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < 2 && status == ATTN_OK && weights->additive[i] != NULL; i++) {
        status = fold_linear(info, weights->additive[i], &engine->linears[i],
                             &engine->folded[i]);
        if (status == ATTN_OK && owned[i] != NULL)
            release_weight(owned[i]);
        owned[i] = &engine->folded[i];
    }
    return status;
}

/* Finds where the panels of each projection begin, in floats, and how many floats there
 * are. The biases of a projection are one more row of its panels. */
static bool reserve_panels(const struct engine *engine,
                           size_t ret_offsets[ATTN_NUM_LINEARS], size_t *ret_floats) {
    const struct linear *linears = engine->linears;
    const struct kernels *kernels = engine->kernels;

    *ret_floats = 0;
    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++) {
        size_t rows, depth;
        if (!size_round_up(linears[i].out, kernels->columns, &rows) ||
            !size_round_up(linears[i].in, kernels->step_numbers, &depth) ||
            !size_mul(depth / kernels->step_numbers, kernels->step_words, &depth) ||
            !reserve_floats(ret_floats, rows, depth + 1, &ret_offsets[i]))
            return false;
    }
    return true;
}

/* Adds up what the engine will own: panels, or what is folded, and the additive score. */
static bool count_engine_bytes(const attn_model_info *info, struct engine *engine) {
    size_t offsets[ATTN_NUM_LINEARS], floats = 0;
    const struct linear *query = &engine->linears[ATTN_QUERY];
    const struct linear *key = &engine->linears[ATTN_KEY];

    if (engine->native && !reserve_panels(engine, offsets, &floats))
        return false;
    if (!engine->native && info->score.kind == ATTN_ADDITIVE &&
        !(size_add_mul(&floats, query->out, query->in) &&
          size_add_mul(&floats, key->out, key->in) &&
          size_add(floats, query->out, &floats) && size_add(floats, key->out, &floats)))
        return false;
    return size_add(floats, info->width.additive, &floats) &&
           size_mul(floats, sizeof(float), &engine->bytes);
}

/* Finds which rows may be multiplied by pieces of bfloat16, see kernels->split(). The
 * pieces of a number from 2^e on are multiples of 2^(e-23), and so are sums of products.
 * Where all of these are multiples of 2^-126, nothing is a denormal number, which matrix
 * tiles would make 0. Returns false when pieces cannot hold the weights like that. */
static bool find_split_range(struct engine *engine) {
    const struct linear *linears = engine->linears;
    struct magnitudes weights = {INFINITY, 0}, biases = {INFINITY, 0};
    int least = 0, largest = 0, log2_depth = 0;

    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++) {
        const struct linear *linear = &linears[i];
        if (linear->weight == NULL)
            continue;
        engine->kernels->measure(linear->weight, linear->out * linear->in, &weights);
        if (linear->bias != NULL)
            engine->kernels->measure(linear->bias, linear->out, &biases);
        for (size_t depth = linear->in; depth >> log2_depth > 0;)
            log2_depth++;
    }
    if (!(weights.least >= 0x1p-103F && biases.least >= 0x1p-103F) ||
        !(weights.largest < 0x1p126F && biases.largest < 0x1p126F))
        return false;
    if (weights.largest > 0) {
        frexpf(weights.least, &least);
        frexpf(weights.largest, &largest);
    }
    /* frexpf() counts from 1/2 on. Sums may become 2^126, as biases may. */
    least = -80 - (least - 1);
    largest = 125 - largest - log2_depth;
    engine->split_range.least = ldexpf(1.0F, least > -103 ? least : -103);
    engine->split_range.largest = ldexpf(1.0F, largest < 125 ? largest : 125);
    return true;
}

/* Releases all but the first `count` numbers of *owned. When the C library refuses, they
 * are released with the rest. */
static void shrink_to(float **owned, size_t count) {
    float *kept = count > 0 ? realloc(*owned, count * sizeof *kept) : NULL;
    if (kept != NULL)
        *owned = kept;
}

/* Packs one projection at `memory`. `panel` is scratch for one panel of float32. The
 * weights are at *owned too, unless `owned` is NULL; then each panel is released once it
 * is packed, the last one first. */
static void pack_linear(struct linear *linear, const struct kernels *kernels,
                        float **owned, float *panel, float *memory) {
    size_t columns = kernels->columns, num_panels = (linear->out + columns - 1) / columns;
    size_t in = linear->in,
           steps = (in + kernels->step_numbers - 1) / kernels->step_numbers;
    size_t panel_floats = steps * kernels->step_words * columns;
    float *bias = memory + num_panels * panel_floats;

    for (size_t o = 0; o < num_panels * columns; o++)
        bias[o] = o < linear->out && linear->bias != NULL ? linear->bias[o] : 0.0F;
    for (size_t n = num_panels; n-- > 0;) {
        const float *weight = owned != NULL ? *owned : linear->weight;
        kernels->pack(weight + n * columns * in, in,
                      size_min(linear->out - n * columns, columns), panel,
                      memory + n * panel_floats);
        if (owned != NULL)
            shrink_to(owned, n * columns * in);
    }
    if (owned != NULL)
        release_weight(owned);
    linear->weight = linear->bias = NULL;
    linear->panels = (struct panels){memory, bias, linear->out, steps};
}

/* Allocates the panels, and packs all projections. */
static attn_status pack_linears(float **const owned[ATTN_NUM_LINEARS],
                                struct engine *engine) {
    struct linear *linears = engine->linears;
    size_t offsets[ATTN_NUM_LINEARS] = {0}, floats, bytes, deepest = 0, panel_bytes;

    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++)
        deepest = size_max(linears[i].in, deepest);
    if (!reserve_panels(engine, offsets, &floats) ||
        !size_mul(floats, sizeof(float), &bytes) ||
        !size_mul(deepest, engine->kernels->columns * sizeof(float), &panel_bytes))
        return ATTN_E_OVERFLOW;
    float *panel = malloc(panel_bytes);
    engine->packed = heap_alloc(bytes);
    bool allocated = engine->packed != NULL && panel != NULL;
    for (size_t i = 0; i < ATTN_NUM_LINEARS && allocated; i++) {
        if (linears[i].weight != NULL)
            pack_linear(&linears[i], engine->kernels, owned[i], panel,
                        engine->packed + offsets[i]);
    }
    free(panel);
    return allocated ? ATTN_OK : ATTN_E_NOMEM;
}

/* Packs the weights of a native engine. */
static attn_status pack_weights(const attn_model_info *info,
                                float **const owned[ATTN_NUM_LINEARS],
                                struct engine *engine) {
    if (engine->kernels->split != NULL && !find_split_range(engine)) {
        engine->kernels = engine->kernels->in_float32;
        engine->fallback = "three bfloat16 do not hold all of its weights";
        if (!count_engine_bytes(info, engine))
            return ATTN_E_OVERFLOW;
    }
    return pack_linears(owned, engine);
}

/* Refuses kernels that this machine lacks, and says what to ask for instead. Intel's
 * AVX512-BF16 multiplies at half the rate of float32, so that does not help. */
static attn_status refuse_kernels(const char *cpu, bool bf16, attn_error *ret_error) {
    const char *refused = NULL;

    if (bf16 && !kernels_have_matrix(&refused) && refused != NULL)
        return error_set(ret_error, ATTN_E_UNSUPPORTED, "%s; or use precision f32",
                         refused);
    if (bf16 && kernels_get(cpu, false) != NULL)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "precision bf16 needs AMX, or AVX512-BF16 of a maker other than "
                         "Intel, whose f32 is faster; cpu '%s' has only f32 on this "
                         "machine",
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

    bool automatic = strcmp(name, "auto") == 0, blas = strcmp(name, blas_engine) == 0;
    bool openblas = strcmp(blas_engine, "openblas") == 0;
    bool bf16 = strcmp(precision, "bf16") == 0;
    engine->kernels = kernels_get(cpu, bf16 && !blas);
    if (engine->kernels == NULL && !bf16 && strcmp(cpu, "amx") == 0 &&
        !kernels_have_matrix(&engine->fallback) && engine->fallback != NULL)
        engine->kernels = kernels_get("avx512", false);
    if (engine->kernels == NULL)
        return refuse_kernels(cpu, bf16, ret_error);
    if (!openblas && strcmp(name, "openblas") == 0)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "this build has no OpenBLAS; use engine auto or native");
    if (!automatic && !blas && strcmp(name, "native") != 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "unknown engine '%s'; use auto, native or openblas", name);
    if (!bf16 && strcmp(precision, "f32") != 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "unknown precision '%s'; use f32 or bf16", precision);
    if (bf16 && blas)
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "engine %s computes in f32 only; use precision f32, or "
                         "engine native",
                         blas_engine);

    engine->native =
        automatic ? !openblas || strcmp(engine->kernels->name, "portable") != 0 : !blas;
    return ATTN_OK;
}

static attn_status refuse_engine(const attn_model_info *info, attn_status status,
                                 attn_error *ret_error) {
    return error_set(ret_error, status, "model '%s': %s", info->name,
                     attn_status_text(status));
}

attn_status engine_plan(const attn_model_info *info, const attn_engine_options *options,
                        struct engine *ret_engine, attn_error *ret_error) {
    bool additive = info->score.kind == ATTN_ADDITIVE;
    struct engine engine = {.score_size =
                                additive ? info->width.additive : info->width.score};

    attn_status status = choose_kernels(&engine, options, ret_error);
    if (status != ATTN_OK)
        return status;
    for (attn_linear i = 0; i < ATTN_NUM_LINEARS; i++)
        engine.linears[i] = engine_size_linear(info, i);
    if (additive &&
        (!size_mul(info->num_heads, engine.score_size, &engine.linears[ATTN_QUERY].out) ||
         !size_mul(info->num_kv_heads, engine.score_size, &engine.linears[ATTN_KEY].out)))
        return refuse_engine(info, ATTN_E_OVERFLOW, ret_error);
    if (!count_engine_bytes(info, &engine))
        return refuse_engine(info, ATTN_E_OVERFLOW, ret_error);
    *ret_engine = engine;
    return ATTN_OK;
}

/* Makes what a planned engine computes with. */
static attn_status build_engine(const attn_model_info *info,
                                const struct layer_weights *weights,
                                struct engine *engine) {
    struct linear *linears = engine->linears;
    bool additive = info->score.kind == ATTN_ADDITIVE;
    size_t score_bytes = info->width.additive * sizeof(float);
    float **owned[ATTN_NUM_LINEARS];

    for (size_t i = 0; i < ATTN_NUM_LINEARS; i++) {
        linears[i].weight = weights->weights[i];
        linears[i].bias = weights->biases[i];
    }
    if (additive) {
        engine->additive_score = malloc(score_bytes);
        if (engine->additive_score == NULL)
            return ATTN_E_NOMEM;
        memcpy(engine->additive_score, weights->additive_score, score_bytes);
    }
    memcpy(owned, weights->owned, sizeof owned);
    attn_status status = fold_additive(info, weights, owned, engine);
    if (status == ATTN_OK && engine->native)
        status = pack_weights(info, owned, engine);
    return status;
}

attn_status engine_make(const attn_model_info *info, const struct layer_weights *weights,
                        const attn_engine_options *options, struct engine *ret_engine,
                        attn_error *ret_error) {
    struct engine engine;
    attn_status status = engine_plan(info, options, &engine, ret_error);
    if (status != ATTN_OK)
        return status;

    status = build_engine(info, weights, &engine);
    if (status != ATTN_OK) {
        engine_deinit(&engine);
        return refuse_engine(info, status, ret_error);
    }
    *ret_engine = engine;
    return ATTN_OK;
}

size_t engine_step(const struct engine *engine, const struct linear *linear) {
    return engine->native ? engine->kernels->columns : linear->out;
}

/* engine_project() by the products of blas.h. */
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
            blas_multiply_transposed(rows, width, words,
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
                    const float *x, size_t x_ld, bool split, size_t rows, float *y,
                    size_t y_ld) {
    const struct kernels *kernels = engine->kernels;
    size_t step = kernels->columns;

    if (engine->native)
        (split ? kernels->project_split : kernels->project)(
            &linear->panels, columns.first / step, (columns.end + step - 1) / step, depth,
            num_depths, x, x_ld, rows, y, y_ld);
    else
        project_by_blas(linear, columns, depth, num_depths, x, x_ld, rows, y, y_ld);
}
