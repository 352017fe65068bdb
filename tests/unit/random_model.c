/* SPDX-License-Identifier: Apache-2.0 */
/* random_model.c: draws models and requests from a small generator. */
#include "random_model.h"

#include "base/dtype.h"
#include "math/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t random_next(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

size_t random_between(uint64_t *state, size_t low, size_t high) {
    return low + (size_t)((random_next(state) >> 16) % (high - low + 1));
}

void random_fill(uint64_t *state, float *numbers, size_t count) {
    for (size_t i = 0; numbers != NULL && i < count; i++)
        numbers[i] = (float)((double)(random_next(state) >> 40) / (1 << 23) - 1.0);
}

/* Returns a number between two others. */
static double random_number(uint64_t *state, double low, double high) {
    return low + (high - low) * (double)(random_next(state) >> 40) / (1 << 24);
}

/* Fills in the numbers of a rotation. */
static void fill_rotation(uint64_t *state, attn_model *model) {
    struct model_rotation *rotation = &model->rotation;
    size_t size = model->info.rotation.size;
    uint64_t own = *state; /* as in add_rotation() */
    bool dynamic = size > 0 && strcmp(model->info.rotation.type, "dynamic") == 0;

    if (size == 0)
        return;
    rotation->magnitude = random_number(state, 0.8, 1.4);
    rotation->base = model->info.rotation.base;
    if (dynamic || rotation->long_frequencies != NULL) {
        rotation->max_length = random_between(state, 1, 12);
        rotation->factor = random_number(state, 1, 4);
    }
    for (size_t a = 0; a < size / 2; a++) {
        rotation->frequencies[a] = pow(rotation->base, -2 * (double)a / (double)size);
        if (rotation->long_frequencies != NULL)
            rotation->long_frequencies[a] =
                rotation->frequencies[a] / random_number(state, 1, 4);
        if (rotation->axis_of != NULL)
            rotation->axis_of[a] = (unsigned char)random_between(
                &own, model->info.rotation.grid > 0, ATTN_AXES - 1);
    }
}

/* Divides a weight by the root of its columns, so that what it makes of a row is about as
 * large as the row, and rounding errors do not grow. NULL is fine. */
static void temper(float *weight, size_t rows, size_t columns) {
    for (size_t i = 0; weight != NULL && i < rows * columns; i++)
        weight[i] /= sqrtf((float)columns);
}

/* Fills in which positional rows distances have: some in their order, or backwards. */
static void fill_position_rows(uint64_t *state, attn_model *model) {
    struct model_array *table = &model->arrays[MODEL_DISTANCE_BIAS];
    size_t rows = model->info.score.position_rows;
    bool backwards = random_between(state, 0, 1) == 1;

    for (size_t i = 0; i < table->columns; i++) {
        size_t row = i * rows / table->columns;
        table->numbers[i] = (float)(backwards ? rows - 1 - row : row);
    }
}

/* Fills in what random_add_features() has added. */
static void fill_features(uint64_t *state, attn_model *model) {
    const attn_model_info *info = &model->info;

    for (size_t i = MODEL_NUM_PACKED; i < MODEL_NUM_ARRAYS; i++) {
        const struct model_array *array = &model->arrays[i];
        random_fill(state, array->numbers, array->rows * array->columns);
        for (size_t h = 0; i == MODEL_SLOPES && h < array->rows &&
                           info->score.bias == ATTN_BIAS_ALIBI_ROUNDED;
             h++)
            array->numbers[h] = dtype_round_bf16(array->numbers[h]);
    }
    if (info->score.bias == ATTN_BIAS_CONTENT)
        fill_position_rows(state, model);
    temper(model_weight(model, ATTN_LATENT_QUERY), info->latent.query, info->width.query);
    temper(model_weight(model, ATTN_LATENT_KEY), info->latent.key, info->width.key);
    fill_rotation(state, model);
}

attn_model *random_model(uint64_t *state, const attn_model_info *info) {
    attn_model *model;

    if (attn_model_create(info, &model) != ATTN_OK)
        abort();
    for (size_t i = 0; i < MODEL_NUM_PACKED; i++)
        random_fill(state, model->arrays[i].numbers,
                    model->arrays[i].rows * model->arrays[i].columns);
    fill_features(state, model);

    if (attn_model_set_engine(model, NULL, NULL) != ATTN_OK)
        abort();
    return model;
}

attn_model_info random_model_info(uint64_t *state) {
    bool bias = random_between(state, 0, 1) == 1,
         projection = random_between(state, 0, 3) > 0;
    attn_model_info info = {.name = "random",
                            .layout = "test",
                            .linears = {[ATTN_QUERY].bias = bias,
                                        [ATTN_KEY].bias = bias,
                                        [ATTN_VALUE].bias = bias,
                                        [ATTN_OUTPUT].bias = bias && projection,
                                        [ATTN_OUTPUT].weight = projection}};

    if (random_between(state, 0, 3) == 0)
        info.score.kind = ATTN_ADDITIVE;
    info.width.query = random_between(state, 1, 40);
    info.width.key = random_between(state, 1, 40);
    info.width.value = random_between(state, 1, 40);
    info.num_heads = random_between(state, 1, 6);
    info.width.head = random_between(state, 1, 20);
    if (info.score.kind == ATTN_ADDITIVE)
        info.width.additive = random_between(state, 1, 12);
    info.width.out =
        projection ? random_between(state, 1, 40) : info.num_heads * info.width.head;
    return info;
}

static bool draw(uint64_t *state, unsigned features, enum random_feature feature) {
    return random_between(state, 0, 1) == 1 && (features & feature) != 0;
}

/* Adds the norms that are drawn. eps is large enough that rounding errors of numbers
 * which are nearly equal do not become large. */
static void add_norms(uint64_t *state, unsigned features, attn_model_info *info) {
    if (draw(state, features, RANDOM_HEAD_NORM)) {
        info->head_norm.kind =
            random_between(state, 0, 1) ? ATTN_NORM_LAYER : ATTN_NORM_RMS;
        info->head_norm.whole = random_between(state, 0, 1) == 1;
        info->head_norm.per_head =
            !info->head_norm.whole && random_between(state, 0, 1) == 1;
        info->head_norm.last = !info->head_norm.whole && random_between(state, 0, 2) == 0;
        info->head_norm.bias = random_between(state, 0, 1) == 1;
        info->head_norm.eps = random_number(state, 0.01, 0.1);
    }
    if ((features & RANDOM_VALUE_ROWS) != 0 && random_between(state, 0, 1) == 1) {
        info->value_norm.kind = (attn_norm)random_between(state, 0, ATTN_NORM_RMS);
        info->value_norm.eps = random_number(state, 0.01, 0.1);
        info->rotation.values = info->rotation.size > 0 && random_between(state, 0, 1) &&
                                info->rotation.size <= info->width.head;
    }
    if (draw(state, features, RANDOM_PRE_NORM)) {
        info->pre_norm.kind =
            random_between(state, 0, 1) ? ATTN_NORM_LAYER : ATTN_NORM_RMS;
        info->pre_norm.applied = true;
        info->pre_norm.bias = random_between(state, 0, 1) == 1;
        info->pre_norm.eps = random_number(state, 0.01, 0.1);
        info->kind = random_between(state, 0, 1) ? "self" : "cross";
        if (strcmp(info->kind, "self") == 0)
            info->width.key = info->width.value = info->width.query;
    }
}

/* Draws another size for queries and keys; half of the time one that fills whole vectors
 * where values do. */
static void add_sizes(uint64_t *state, attn_model_info *info) {
    bool whole = info->width.head % 32 == 0 && random_between(state, 0, 1) == 1;

    info->width.score = whole ? 32 * random_between(state, 1, 3)
                              : random_between(state, 0, 20); /* 0: the same size */
}

/* Adds latent rows that are drawn. */
static void add_latents(uint64_t *state, unsigned features, attn_model_info *info) {
    if (draw(state, features, RANDOM_LATENTS) && !info->linears[ATTN_GATE].weight)
        info->latent.query = random_between(state, 1, 40);
    if (draw(state, features, RANDOM_LATENTS)) {
        info->latent.key = random_between(state, 1, 40);
        info->latent.shared = random_between(state, 0, info->latent.key - 1);
        info->width.value = info->width.key;
    }
    info->linears[ATTN_LATENT_QUERY].bias = random_between(state, 0, 1) == 1;
    info->linears[ATTN_LATENT_KEY].bias = random_between(state, 0, 1) == 1;
    info->latent.eps = random_number(state, 0.01, 0.1);
}

/* Adds what becomes of the heads' outputs. */
static void add_ends(const uint64_t *state, unsigned features, attn_model_info *info) {
    uint64_t own =
        *state ^ 0x9e3779b97f4a7c15; /* or it would change what is drawn next */

    if (draw(&own, features, RANDOM_GATE)) {
        info->linears[ATTN_GATE].weight = true;
        info->linears[ATTN_GATE].bias = random_between(&own, 0, 1) == 1;
    }
    if (draw(&own, features, RANDOM_OUT_NORM)) {
        info->out_norm.kind = ATTN_NORM_RMS;
        info->out_norm.eps = random_number(&own, 0.01, 0.1);
    }
}

static void add_rotation(uint64_t *state, attn_model_info *info) {
    static const char *const types[] = {"default", "longrope", "dynamic"};

    size_t size = info->width.score > 0 ? info->width.score : info->width.head;

    if (size < 2)
        return;
    info->rotation.size = 2 * random_between(state, 1, size / 2);
    info->rotation.type = types[random_between(state, 0, 2)];
    info->rotation.base = random_number(state, 100, 10000);
    uint64_t own = *state; /* or sections would change what comes after them */
    size_t kind = random_between(&own, 0, 3);
    info->rotation.axes = kind > 1 ? ATTN_AXES : 1;
    if (kind == 1) {
        info->rotation.grid = random_between(&own, 1, 12);
        info->rotation.grid_first = random_between(&own, 0, 3);
    }
}

void random_add_features(uint64_t *state, unsigned features, attn_model_info *info) {
    if (info->score.kind != ATTN_SCALED_DOT_PRODUCT)
        return;
    if (draw(state, features, RANDOM_KV_HEADS)) {
        info->num_kv_heads = random_between(state, 1, info->num_heads);
        while (info->num_heads % info->num_kv_heads != 0)
            info->num_kv_heads--;
    }
    if ((features & RANDOM_SIZES) != 0)
        add_sizes(state, info);
    if (draw(state, features, RANDOM_ROTATION))
        add_rotation(state, info);
    add_norms(state, features, info);
    add_ends(state, features, info);
    if ((features & RANDOM_LATENTS) != 0)
        add_latents(state, features, info);
    if (draw(state, features, RANDOM_CLIP))
        info->projection.clip = random_number(state, 0.3, 1.5);
    info->projection.clip_last =
        info->head_norm.kind != ATTN_NORM_NONE && random_between(state, 0, 1) == 1;
    if ((features & RANDOM_QUERY_FACTOR) != 0 && random_between(state, 0, 1) == 1) {
        info->query_factor.beta = random_number(state, 0.1, 1);
        info->query_factor.length = random_between(state, 1, 5);
        info->query_factor.offset = random_between(state, 0, 1);
    }
    if (draw(state, features, RANDOM_SCALE))
        info->score.scale = random_number(state, 0.05, 1.5);
    if (draw(state, features, RANDOM_SOFTCAP))
        info->score.softcap = random_number(state, 0.5, 5);
    info->score.sinks = draw(state, features, RANDOM_SINKS);
    if (draw(state, features, RANDOM_BIAS)) {
        info->score.bias =
            (attn_bias)random_between(state, ATTN_BIAS_ALIBI, ATTN_BIAS_CONTENT);
        if (info->score.bias == ATTN_BIAS_BUCKETS ||
            info->score.bias == ATTN_BIAS_CONTENT)
            info->score.bias_distance = random_between(state, 1, 8);
    }
    if (info->score.bias == ATTN_BIAS_CONTENT) {
        size_t terms = random_between(state, 1, 3);
        info->score.position_keys = (terms & 1) != 0;
        info->score.position_queries = (terms & 2) != 0;
        info->score.position_rows = random_between(state, 1, 20);
    }
}

/* Allocates and fills; ends the program when memory runs out. */
static float *random_floats(uint64_t *state, size_t count) {
    float *numbers = malloc(count * sizeof *numbers);
    if (numbers == NULL)
        abort();
    random_fill(state, numbers, count);
    return numbers;
}

static size_t *random_sizes(uint64_t *state, size_t count, size_t high) {
    size_t *sizes = malloc(count * sizeof *sizes);
    if (sizes == NULL)
        abort();
    for (size_t i = 0; i < count; i++)
        sizes[i] = random_between(state, 1, high);
    return sizes;
}

static void add_valid_lens(uint64_t *state, struct random_request *r,
                           size_t num_queries) {
    attn_request *request = &r->request;
    size_t kind = random_between(state, 0, 2), row = 0;

    if (kind == 0)
        return;
    request->valid_lens_per_query = kind == 2;
    r->valid_lens = random_sizes(state, num_queries, 1);
    for (size_t s = 0; s < request->num_sequences; s++) {
        for (size_t q = 0; q < request->query_lens[s]; q++, row++)
            r->valid_lens[kind == 2 ? row : s] =
                random_between(state, 0, request->key_lens[s]);
    }
    request->valid_lens = r->valid_lens;
}

static void add_prefix_lens(const uint64_t *state, struct random_request *r) {
    uint64_t own = *state ^ 0x9e3779b97f4a7c15; /* as in add_ends() */
    attn_request *request = &r->request;

    if (random_between(&own, 0, 2) > 0)
        return;
    r->prefix_lens = random_sizes(&own, request->num_sequences, 1);
    for (size_t s = 0; s < request->num_sequences; s++)
        r->prefix_lens[s] = random_between(&own, 0, request->key_lens[s]);
    request->prefix_lens = r->prefix_lens;
}

/* Returns a random number of distinct indices below `limit`, in random order; NULL
 * selects all. */
static size_t *random_selection(uint64_t *state, size_t limit, size_t *ret_count) {
    if (random_between(state, 0, 1) == 0)
        return NULL;

    size_t *list = random_sizes(state, limit, 1);
    for (size_t i = 0; i < limit; i++) {
        size_t j = random_between(state, 0, i);
        list[i] = list[j];
        list[j] = i;
    }
    *ret_count = random_between(state, 1, limit);
    return list;
}

/* Selects among the weights. */
static void add_selection(const uint64_t *state, const attn_model_info *info,
                          struct random_request *r) {
    attn_request *request = &r->request;
    uint64_t own = *state; /* or a request would change those after it */
    size_t shortest = request->query_lens[0];

    for (size_t s = 1; s < request->num_sequences; s++)
        shortest = request->query_lens[s] < shortest ? request->query_lens[s] : shortest;
    request->weights_heads = r->weights_heads =
        random_selection(&own, info->num_heads, &request->num_weights_heads);
    request->weights_queries = r->weights_queries =
        (ptrdiff_t *)random_selection(&own, shortest, &request->num_weights_queries);
}

void random_request_init(uint64_t *state, const attn_model *model, size_t max_queries,
                         size_t max_keys, struct random_request *ret_request) {
    const attn_model_info *info = attn_model_get_info(model);
    struct random_request r = {.request.num_sequences = random_between(state, 1, 4)};
    attn_request *request = &r.request;
    size_t num_queries = 0, num_keys = 0;

    request->query_lens = r.query_lens =
        random_sizes(state, request->num_sequences, max_queries);
    request->key_lens = r.key_lens =
        random_sizes(state, request->num_sequences, max_keys);
    for (size_t s = 0; s < request->num_sequences; s++) {
        num_queries += r.query_lens[s];
        num_keys += r.key_lens[s];
    }

    request->queries = r.queries = random_floats(state, num_queries * info->width.query);
    request->keys = r.keys = random_floats(state, num_keys * info->width.key);
    request->values = r.values = random_floats(state, num_keys * info->width.value);
    add_valid_lens(state, &r, num_queries);
    request->causal = random_between(state, 0, 1) == 1;
    add_prefix_lens(state, &r);
    request->need_weights = (attn_need_weights)random_between(state, 0, 2);
    add_selection(state, info, &r);
    if (random_between(state, 0, 1) == 1) {
        request->head_mask = r.head_mask = random_floats(state, info->num_heads);
        for (size_t h = 0; h < info->num_heads; h++)
            r.head_mask[h] *= random_between(state, 0, 2) > 0 ? 1.0F : 0.0F;
    }

    if (attn_plan(model, request, &r.sizes, NULL) != ATTN_OK)
        abort();
    *ret_request = r;
}

/* Returns positions from `base` on of each row of all sequences, in order or in any. */
static size_t *random_positions(uint64_t *state, size_t base, const size_t *lens,
                                size_t num_sequences, size_t count) {
    size_t *positions = random_sizes(state, count, 1);
    size_t step = random_between(state, 0, 2), row = 0;
    bool ordered = random_between(state, 0, 1) == 1;

    for (size_t s = 0; s < num_sequences; s++) {
        size_t next = base + random_between(state, 0, 4);
        for (size_t i = 0; i < lens[s]; i++, row++) {
            positions[row] = ordered ? next : base + random_between(state, 0, lens[s]);
            next += random_between(state, step / 2, step);
        }
    }
    return positions;
}

/* Positions of queries, keys or both; far away ones only of both. */
static void add_positions(uint64_t *state, struct random_request *r) {
    attn_request *request = &r->request;
    size_t kind = random_between(state, 0, 3), base = kind == 3 ? 100000 : 0;

    if (kind != 1)
        request->positions = r->positions =
            random_positions(state, base, request->query_lens, request->num_sequences,
                             r->sizes.num_queries);
    if (kind != 2)
        request->key_positions = r->key_positions = random_positions(
            state, base, request->key_lens, request->num_sequences, r->sizes.num_keys);
}

/* Positions of three axes of queries, keys or both. */
static void add_axes(const uint64_t *state, struct random_request *r) {
    attn_request *request = &r->request;
    uint64_t own = *state; /* as in add_rotation() */
    size_t kind = random_between(&own, 0, 3);

    if (kind % 3 == 0)
        request->axis_positions = r->axis_positions =
            random_sizes(&own, ATTN_AXES * r->sizes.num_queries, 300);
    if (kind < 2)
        request->axis_key_positions = r->axis_key_positions =
            random_sizes(&own, ATTN_AXES * r->sizes.num_keys, 300);
}

/* A bias of any steps, of which some numbers mask. */
static void add_given_bias(uint64_t *state, size_t num_heads, struct random_request *r) {
    attn_request *request = &r->request;
    size_t queries = 1, keys = 1, masked = random_between(state, 0, 2);

    for (size_t s = 0; s < request->num_sequences; s++) {
        queries = request->query_lens[s] > queries ? request->query_lens[s] : queries;
        keys = request->key_lens[s] > keys ? request->key_lens[s] : keys;
    }
    size_t rows = random_between(state, 0, 1) ? queries : 1;
    size_t heads = random_between(state, 0, 1) ? num_heads : 1;
    size_t sequences = random_between(state, 0, 1) ? request->num_sequences : 1;
    size_t count = sequences * heads * rows * keys;
    r->bias = random_floats(state, count);
    for (size_t i = 0; i < count; i++) {
        if (random_between(state, 1, 4) <= masked)
            r->bias[i] = -INFINITY;
    }
    request->bias = r->bias;
    request->bias_row_ld = rows > 1 ? keys : 0;
    request->bias_head_ld = heads > 1 ? rows * keys : 0;
    request->bias_sequence_ld = sequences > 1 ? heads * rows * keys : 0;
}

void random_request_add(uint64_t *state, unsigned features, const attn_model *model,
                        struct random_request *request) {
    attn_request *plain = &request->request;

    if (draw(state, features, RANDOM_POSITIONS))
        add_positions(state, request);
    if (attn_model_get_info(model)->rotation.axes == ATTN_AXES &&
        (features & RANDOM_POSITIONS) != 0)
        add_axes(state, request);
    if (draw(state, features, RANDOM_WINDOW))
        plain->window = random_between(state, 1, plain->key_lens[0] + 2);
    if (draw(state, features, RANDOM_WINDOW))
        plain->chunk = random_between(state, 1, plain->key_lens[0] + 2);
    if ((features & RANDOM_GIVEN_BIAS) != 0)
        add_given_bias(state, attn_model_get_info(model)->num_heads, request);
    plain->need_heads = draw(state, features, RANDOM_NEED);
    plain->need_lse = draw(state, features, RANDOM_NEED);
    plain->omit_outputs = draw(state, features, RANDOM_NEED);
    if (attn_plan(model, plain, &request->sizes, NULL) != ATTN_OK)
        abort();
}

void random_request_deinit(struct random_request *request) {
    free(request->bias);
    free(request->positions);
    free(request->key_positions);
    free(request->axis_positions);
    free(request->axis_key_positions);
    free(request->query_lens);
    free(request->key_lens);
    free(request->valid_lens);
    free(request->prefix_lens);
    free(request->weights_heads);
    free(request->weights_queries);
    free(request->queries);
    free(request->keys);
    free(request->values);
    free(request->head_mask);
}
