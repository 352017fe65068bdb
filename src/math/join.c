/* SPDX-License-Identifier: Apache-2.0 */
/* join.c: copies the rows of several requests next to each other. */
#include "math/join.h"

#include "math/mask.h"
#include "math/model.h"
#include "math/reserve.h"

#include <string.h>

/* The size of a batch, and which of its inputs are one tensor. */
struct join_shape {
    size_t num_sequences, num_queries, num_keys;
    bool same_keys;   /* keys are queries */
    bool same_values; /* values are keys */
};

/* Where the arrays of the joined batch are in memory: offsets in floats. */
struct join_layout {
    size_t query_lens, key_lens; /* [num_sequences] size_t */
    size_t valid_lens;           /* [num_queries] size_t */
    size_t queries, keys, values;
    size_t floats; /* in all */
};

static struct join_shape shape_of(const attn_model *model, const attn_request *request) {
    const attn_model_info *info = &model->info;
    struct join_shape shape = {.num_sequences = request->num_sequences};

    for (size_t s = 0; s < request->num_sequences; s++) {
        shape.num_queries += request->query_lens[s];
        shape.num_keys += request->key_lens[s];
    }
    shape.same_keys = request->keys == request->queries &&
                      info->key_size == info->query_size &&
                      shape.num_keys == shape.num_queries;
    shape.same_values =
        request->values == request->keys && info->value_size == info->key_size;
    return shape;
}

/* Whether only some weights are wanted, or in another order. */
static bool selects(const attn_request *request) {
    return request->weights_heads != NULL || request->weights_queries != NULL;
}

bool join_possible(const attn_model *model, const attn_request *a,
                   const attn_request *b) {
    struct join_shape of_a = shape_of(model, a), of_b = shape_of(model, b);

    if (!model->engine.native || a->need_weights != b->need_weights || selects(a) ||
        selects(b) || of_a.same_keys != of_b.same_keys ||
        of_a.same_values != of_b.same_values)
        return false;
    for (size_t h = 0; h < model->info.num_heads; h++) {
        if (mask_head_factor(a, h) != mask_head_factor(b, h))
            return false;
    }
    return true;
}

/* Adds up the requests' sizes; false when they do not fit. */
static bool add_shapes(const attn_model *model, const attn_request *const *requests,
                       size_t count, struct join_shape *ret_sum) {
    struct join_shape sum = shape_of(model, requests[0]);

    for (size_t i = 1; i < count; i++) {
        struct join_shape shape = shape_of(model, requests[i]);
        if (!size_add(sum.num_sequences, shape.num_sequences, &sum.num_sequences) ||
            !size_add(sum.num_queries, shape.num_queries, &sum.num_queries) ||
            !size_add(sum.num_keys, shape.num_keys, &sum.num_keys))
            return false;
    }
    *ret_sum = sum;
    return true;
}

/* Lays out the arrays of a joined batch; false when they do not fit. */
static bool lay_out(const attn_model_info *info, const struct join_shape *shape,
                    struct join_layout *ret_layout) {
    const size_t words = sizeof(size_t) / sizeof(float);
    struct join_layout at = {0};
    size_t *floats = &at.floats;

    if (!reserve_floats(floats, shape->num_sequences, words, &at.query_lens) ||
        !reserve_floats(floats, shape->num_sequences, words, &at.key_lens) ||
        !reserve_floats(floats, shape->num_queries, words, &at.valid_lens) ||
        !reserve_floats(floats, shape->num_queries, info->query_size, &at.queries))
        return false;

    at.keys = at.queries;
    if (!shape->same_keys &&
        !reserve_floats(floats, shape->num_keys, info->key_size, &at.keys))
        return false;
    at.values = at.keys;
    if (!shape->same_values &&
        !reserve_floats(floats, shape->num_keys, info->value_size, &at.values))
        return false;
    *ret_layout = at;
    return true;
}

size_t join_bytes(const attn_model *model, const attn_request *const *requests,
                  size_t count) {
    struct join_shape shape;
    struct join_layout layout;
    size_t bytes;

    if (!add_shapes(model, requests, count, &shape) ||
        !lay_out(&model->info, &shape, &layout) ||
        !size_mul(layout.floats, sizeof(float), &bytes))
        return SIZE_MAX;
    return bytes;
}

/* Where the next request is copied to. */
struct join_position {
    size_t *query_lens, *key_lens, *valid_lens;
    float *queries, *keys, *values;
};

/* Writes how many keys each query of a request attends to; returns where they end. */
static size_t *write_valid_lens(const attn_request *request, size_t *to) {
    size_t first_row = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        for (size_t row = 0; row < request->query_lens[s]; row++)
            *to++ = mask_num_keys(request, s, first_row, row);
        first_row += request->query_lens[s];
    }
    return to;
}

/* Copies one request, and moves the position past it. */
static void copy_request(const attn_model *model, const attn_request *request,
                         struct join_position *to) {
    const attn_model_info *info = &model->info;
    struct join_shape shape = shape_of(model, request);
    size_t lens_size = shape.num_sequences * sizeof(size_t);
    size_t queries = shape.num_queries * info->query_size;
    size_t keys = shape.num_keys * info->key_size;
    size_t values = shape.num_keys * info->value_size;

    memcpy(to->query_lens, request->query_lens, lens_size);
    memcpy(to->key_lens, request->key_lens, lens_size);
    to->query_lens += shape.num_sequences;
    to->key_lens += shape.num_sequences;
    to->valid_lens = write_valid_lens(request, to->valid_lens);

    memcpy(to->queries, request->queries, queries * sizeof(float));
    if (!shape.same_keys)
        memcpy(to->keys, request->keys, keys * sizeof(float));
    if (!shape.same_values)
        memcpy(to->values, request->values, values * sizeof(float));
    to->queries += queries;
    to->keys += keys;
    to->values += values;
}

void join_pack(const attn_model *model, const attn_request *const *requests, size_t count,
               void *memory, attn_request *ret_joined) {
    struct join_shape shape = {0};
    struct join_layout layout = {0};
    float *floats = memory;

    /* Cannot fail: join_bytes() has counted them. */
    add_shapes(model, requests, count, &shape);
    lay_out(&model->info, &shape, &layout);

    struct join_position to = {
        .query_lens = (size_t *)(void *)(floats + layout.query_lens),
        .key_lens = (size_t *)(void *)(floats + layout.key_lens),
        .valid_lens = (size_t *)(void *)(floats + layout.valid_lens),
        .queries = floats + layout.queries,
        .keys = floats + layout.keys,
        .values = floats + layout.values,
    };
    *ret_joined = (attn_request){
        .num_sequences = shape.num_sequences,
        .query_lens = to.query_lens,
        .key_lens = to.key_lens,
        .queries = to.queries,
        .keys = to.keys,
        .values = to.values,
        .valid_lens = to.valid_lens,
        .valid_lens_per_query = true,
        .head_mask = requests[0]->head_mask,
        .need_weights = requests[0]->need_weights,
        .parallel = requests[0]->parallel,
    };

    for (size_t i = 0; i < count; i++)
        copy_request(model, requests[i], &to);
}

attn_result join_take(attn_result *rest, const attn_sizes *sizes) {
    attn_result own = *rest;

    rest->outputs += sizes->outputs;
    if (rest->weights != NULL)
        rest->weights += sizes->weights;
    return own;
}
