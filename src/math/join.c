/* SPDX-License-Identifier: Apache-2.0 */
/* join.c: copies the rows of several requests next to each other. */
#include "math/join.h"

#include "base/hash.h"
#include "base/pace.h"
#include "math/mask.h"
#include "math/model.h"
#include "math/plan/results.h"
#include "math/reserve.h"

#include <string.h>

/* The size of a batch, and which of its inputs are one tensor. */
struct join_shape {
    size_t num_sequences, num_queries, num_keys;
    bool same_keys;                /* keys are queries */
    bool same_values;              /* values are keys */
    bool positions, key_positions; /* are given */
    bool axes, key_axes;           /* likewise, of three axes */
};

static struct join_shape shape_of(const attn_model *model, const attn_request *request) {
    const attn_model_info *info = &model->info;
    struct join_shape shape = {.num_sequences = request->num_sequences};

    for (size_t s = 0; s < request->num_sequences; s++) {
        shape.num_queries += request->query_lens[s];
        shape.num_keys += request->key_lens[s];
    }
    shape.same_keys = request->keys == request->queries &&
                      info->width.key == info->width.query &&
                      shape.num_keys == shape.num_queries;
    shape.same_values =
        request->values == request->keys && info->width.value == info->width.key;
    shape.positions = request->positions != NULL;
    shape.key_positions = request->key_positions != NULL;
    shape.axes = request->axis_positions != NULL;
    shape.key_axes = request->axis_key_positions != NULL;
    return shape;
}

/* Whether the mask of a request is more than how many keys each query attends to, from
 * the first on, which valid_lens per query can say. */
static bool needs_mask(const attn_request *request) {
    return request->window > 0 || request->chunk > 0 || request->positions != NULL ||
           request->key_positions != NULL;
}

/* Whether requests can be joined that want what this one does: all of the results. */
static bool wants_joined(const attn_request *request) {
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        if (result_wanted(request, id) && (result_table[id].kinds & RESULT_JOINED) == 0)
            return false;
    }
    return request->weights_heads == NULL && request->weights_queries == NULL;
}

/* Writes what joined requests must have in common: all of a request, but for what
 * join_pack() joins. So a member that nobody thought of here must be equal, too. */
static void find_common(const attn_request *request, attn_request *ret_common) {
    static const size_t given[1];

    memcpy(ret_common, request, sizeof *request); /* also what is between members */
    ret_common->num_sequences = 0;
    ret_common->query_lens = ret_common->key_lens = ret_common->valid_lens = NULL;
    ret_common->valid_lens_per_query = false;
    ret_common->queries = ret_common->keys = ret_common->values = NULL;
    ret_common->positions = request->positions != NULL ? given : NULL;
    ret_common->key_positions = request->key_positions != NULL ? given : NULL;
    ret_common->axis_positions = request->axis_positions != NULL ? given : NULL;
    ret_common->axis_key_positions = request->axis_key_positions != NULL ? given : NULL;
    ret_common->causal = needs_mask(request) && request->causal;
    ret_common->prefix_lens = needs_mask(request) ? request->prefix_lens : NULL;
    ret_common->num_weights_heads = ret_common->num_weights_queries = 0; /* of none */
    ret_common->head_mask = NULL;
    ret_common->parallel = NULL;
}

uint64_t join_hash(const attn_model *model, const attn_request *request) {
    attn_request common;
    find_common(request, &common);
    uint64_t hash = hash_bytes(HASH_START, &model, sizeof model);
    hash = hash_bytes(hash, &common, sizeof common);

    for (size_t h = 0; h < model->info.num_heads; h++) {
        float factor = mask_head_factor(request, h) + 0.0F; /* -0 becomes 0 */
        hash = hash_bytes(hash, &factor, sizeof factor);
    }
    return hash;
}

bool join_possible(const attn_model *model, const attn_request *a,
                   const attn_request *b) {
    struct join_shape of_a = shape_of(model, a), of_b = shape_of(model, b);
    attn_request common_a, common_b;

    if (!model->engine.native || model->info.projection.given || !wants_joined(a) ||
        of_a.same_keys != of_b.same_keys || of_a.same_values != of_b.same_values)
        return false;
    find_common(a, &common_a);
    find_common(b, &common_b);
    if (memcmp((const char *)&common_a, (const char *)&common_b, sizeof common_a) != 0)
        return false;
    for (size_t h = 0; h < model->info.num_heads; h++) {
        if (mask_head_factor(a, h) != mask_head_factor(b, h))
            return false;
    }
    return true;
}

/* Adds up the requests' sizes, which saturate. */
static struct join_shape add_shapes(const attn_model *model,
                                    const attn_request *const *requests, size_t count) {
    struct join_shape sum = shape_of(model, requests[0]);

    for (size_t i = 1; i < count; i++) {
        struct join_shape shape = shape_of(model, requests[i]);
        size_add_saturating(&sum.num_sequences, shape.num_sequences);
        size_add_saturating(&sum.num_queries, shape.num_queries);
        size_add_saturating(&sum.num_keys, shape.num_keys);
    }
    return sum;
}

/* Where the next request is copied to. */
struct join_position {
    size_t *query_lens, *key_lens, *valid_lens;
    size_t *positions, *key_positions, *axes, *key_axes;
    float *queries, *keys, *values;
};

/* Takes the arrays of a joined batch. Returns their floats; SIZE_MAX: more than fit. */
static size_t join_lay_out(const attn_model_info *info, const struct join_shape *shape,
                           void *memory, struct join_position *ret_to) {
    const size_t words = sizeof(size_t) / sizeof(float);
    size_t queries = shape->num_queries, keys = shape->num_keys;
    struct reserve block = {memory, 0};
    struct join_position to;

    to.query_lens = reserve_take(&block, shape->num_sequences, words);
    to.key_lens = reserve_take(&block, shape->num_sequences, words);
    to.valid_lens = reserve_take(&block, queries, words);
    to.positions = reserve_take(&block, shape->positions ? queries : 0, words);
    to.key_positions = reserve_take(&block, shape->key_positions ? keys : 0, words);
    to.axes = reserve_take(&block, shape->axes ? queries : 0, ATTN_AXES * words);
    to.key_axes = reserve_take(&block, shape->key_axes ? keys : 0, ATTN_AXES * words);
    to.queries = reserve_take(&block, queries, info->width.query);
    to.keys = reserve_take(&block, shape->same_keys ? 0 : keys, info->width.key);
    to.values = reserve_take(&block, shape->same_values ? 0 : keys, info->width.value);
    if (shape->same_keys)
        to.keys = to.queries;
    if (shape->same_values)
        to.values = to.keys;
    *ret_to = to;
    return block.floats;
}

size_t join_bytes(const attn_model *model, const attn_request *const *requests,
                  size_t count) {
    const struct join_shape shape = add_shapes(model, requests, count);
    struct join_position to;
    size_t bytes;

    return size_mul(join_lay_out(&model->info, &shape, NULL, &to), sizeof(float), &bytes)
               ? bytes
               : SIZE_MAX;
}

/* Writes where the keys end that each query of a request attends to; returns where these
 * lengths end. */
static size_t *write_valid_lens(const attn_request *request, size_t *to) {
    size_t first_query = 0, first_key = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        struct mask mask;
        mask_init(&mask, request, s, first_query, first_key);
        for (size_t row = 0; row < request->query_lens[s]; row++)
            *to++ = mask_bound_keys(&mask, row).end;
        first_query += request->query_lens[s];
        first_key += request->key_lens[s];
    }
    return to;
}

/* Copies `count` integers where there are any, and moves *to past them. */
static void copy_integers(const size_t *integers, size_t count, size_t **to) {
    if (integers == NULL)
        return;
    pace_copy(*to, integers, count * sizeof(size_t));
    *to += count;
}

/* Copies one request, and moves the position past it. */
static void copy_request(const attn_model *model, const attn_request *request,
                         struct join_position *to) {
    const attn_model_info *info = &model->info;
    struct join_shape shape = shape_of(model, request);
    size_t queries = shape.num_queries * info->width.query;
    size_t keys = shape.num_keys * info->width.key;
    size_t values = shape.num_keys * info->width.value;

    copy_integers(request->query_lens, shape.num_sequences, &to->query_lens);
    copy_integers(request->key_lens, shape.num_sequences, &to->key_lens);
    to->valid_lens = write_valid_lens(request, to->valid_lens);
    copy_integers(request->positions, shape.num_queries, &to->positions);
    copy_integers(request->key_positions, shape.num_keys, &to->key_positions);
    copy_integers(request->axis_positions, ATTN_AXES * shape.num_queries, &to->axes);
    copy_integers(request->axis_key_positions, ATTN_AXES * shape.num_keys, &to->key_axes);

    pace_copy(to->queries, request->queries, queries * sizeof(float));
    if (!shape.same_keys)
        pace_copy(to->keys, request->keys, keys * sizeof(float));
    if (!shape.same_values)
        pace_copy(to->values, request->values, values * sizeof(float));
    to->queries += queries;
    to->keys += keys;
    to->values += values;
}

void join_pack(const attn_model *model, const attn_request *const *requests, size_t count,
               void *memory, attn_request *ret_joined) {
    const struct join_shape shape = add_shapes(model, requests, count);
    struct join_position to;

    join_lay_out(&model->info, &shape, memory, &to); /* fits, as in join_bytes() */
    *ret_joined = *requests[0];
    ret_joined->num_sequences = shape.num_sequences;
    ret_joined->query_lens = to.query_lens;
    ret_joined->key_lens = to.key_lens;
    ret_joined->queries = to.queries;
    ret_joined->keys = to.keys;
    ret_joined->values = to.values;
    ret_joined->valid_lens = to.valid_lens;
    ret_joined->valid_lens_per_query = true;
    ret_joined->positions = shape.positions ? to.positions : NULL;
    ret_joined->key_positions = shape.key_positions ? to.key_positions : NULL;
    ret_joined->axis_positions = shape.axes ? to.axes : NULL;
    ret_joined->axis_key_positions = shape.key_axes ? to.key_axes : NULL;
    ret_joined->causal = needs_mask(requests[0]) && requests[0]->causal;
    ret_joined->prefix_lens = needs_mask(requests[0]) ? requests[0]->prefix_lens : NULL;

    for (size_t i = 0; i < count; i++)
        copy_request(model, requests[i], &to);
}

attn_result join_take(attn_result *rest, const attn_sizes *sizes) {
    attn_result own = *rest;

    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        char *numbers = result_numbers(rest, id);
        size_t count = result_count(sizes, id);
        if (numbers != NULL)
            result_set_numbers(rest, id, numbers + count * result_number_bytes(id));
    }
    return own;
}
