/* SPDX-License-Identifier: Apache-2.0 */
/* random_model.c: draws models and requests from a small generator. */
#include "random_model.h"

#include "math/model.h"

#include <stdlib.h>

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

attn_model *random_model(uint64_t *state, const attn_model_info *info) {
    size_t hidden = info->num_heads * info->head_size;
    attn_model *model;

    if (attn_model_create(info, &model) != ATTN_OK)
        abort();
    random_fill(state, model->query_weight, hidden * info->query_size);
    random_fill(state, model->query_bias, hidden);
    random_fill(state, model->key_weight, hidden * info->key_size);
    random_fill(state, model->key_bias, hidden);
    random_fill(state, model->value_weight, hidden * info->value_size);
    random_fill(state, model->value_bias, hidden);
    random_fill(state, model->output_weight, info->out_size * hidden);
    random_fill(state, model->output_bias, info->out_size);
    random_fill(state, model->additive_query, info->additive_size * info->head_size);
    random_fill(state, model->additive_key, info->additive_size * info->head_size);
    random_fill(state, model->additive_score, info->additive_size);

    if (attn_model_set_engine(model, NULL, NULL) != ATTN_OK)
        abort();
    return model;
}

attn_model_info random_model_info(uint64_t *state) {
    bool bias = random_between(state, 0, 1) == 1,
         projection = random_between(state, 0, 3) > 0;
    attn_model_info info = {
        .name = "random",
        .layout = "test",
        .scoring =
            random_between(state, 0, 3) == 0 ? ATTN_ADDITIVE : ATTN_SCALED_DOT_PRODUCT,
        .query_size = random_between(state, 1, 40),
        .key_size = random_between(state, 1, 40),
        .value_size = random_between(state, 1, 40),
        .num_heads = random_between(state, 1, 6),
        .head_size = random_between(state, 1, 20),
        .query_bias = bias,
        .key_bias = bias,
        .value_bias = bias,
        .output_bias = bias && projection,
        .output_projection = projection,
    };

    if (info.scoring == ATTN_ADDITIVE)
        info.additive_size = random_between(state, 1, 12);
    info.out_size =
        projection ? random_between(state, 1, 40) : info.num_heads * info.head_size;
    return info;
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
        random_selection(&own, shortest, &request->num_weights_queries);
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

    request->queries = r.queries = random_floats(state, num_queries * info->query_size);
    request->keys = r.keys = random_floats(state, num_keys * info->key_size);
    request->values = r.values = random_floats(state, num_keys * info->value_size);
    add_valid_lens(state, &r, num_queries);
    request->causal = random_between(state, 0, 1) == 1;
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

void random_request_deinit(struct random_request *request) {
    free(request->query_lens);
    free(request->key_lens);
    free(request->valid_lens);
    free(request->weights_heads);
    free(request->weights_queries);
    free(request->queries);
    free(request->keys);
    free(request->values);
    free(request->head_mask);
}
