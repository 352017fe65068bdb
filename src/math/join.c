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

/* The arrays that are copied. Their order is that of the memory. */
enum array {
    QUERY_LENS,
    KEY_LENS,
    VALID_LENS,
    POSITIONS,
    KEY_POSITIONS,
    AXIS_POSITIONS,
    AXIS_KEY_POSITIONS,
    QUERIES,
    KEYS,
    VALUES,
    NUM_ARRAYS
};

/* Those of a request; NULL, of no floats: it has none, or keys are its queries, or values
 * its keys. But every request has floats of valid_lens. */
struct arrays {
    const void *from[NUM_ARRAYS];
    size_t floats[NUM_ARRAYS];
};

static struct arrays arrays_of(const attn_model *model, const attn_request *request) {
    const attn_model_info *info = &model->info;
    const size_t words = sizeof(size_t) / sizeof(float);
    size_t sequences = request->num_sequences, queries = 0, keys = 0;

    for (size_t s = 0; s < sequences; s++) {
        queries += request->query_lens[s];
        keys += request->key_lens[s];
    }
    bool same_keys = request->keys == request->queries &&
                     info->width.key == info->width.query && keys == queries;
    bool same_values =
        request->values == request->keys && info->width.value == info->width.key;
    const struct {
        const void *from;
        size_t rows, width;
    } list[NUM_ARRAYS] = {
        [QUERY_LENS] = {request->query_lens, sequences, words},
        [KEY_LENS] = {request->key_lens, sequences, words},
        [POSITIONS] = {request->positions, queries, words},
        [KEY_POSITIONS] = {request->key_positions, keys, words},
        [AXIS_POSITIONS] = {request->axis_positions, queries, ATTN_AXES * words},
        [AXIS_KEY_POSITIONS] = {request->axis_key_positions, keys, ATTN_AXES * words},
        [QUERIES] = {request->queries, queries, info->width.query},
        [KEYS] = {same_keys ? NULL : request->keys, keys, info->width.key},
        [VALUES] = {same_values ? NULL : request->values, keys, info->width.value},
    };
    struct arrays arrays = {.floats[VALID_LENS] = size_product(queries, words)};

    for (enum array i = 0; i < NUM_ARRAYS; i++) {
        arrays.from[i] = list[i].from;
        if (list[i].from != NULL)
            arrays.floats[i] = size_product(list[i].rows, list[i].width);
    }
    return arrays;
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
    memcpy(ret_common, request, sizeof *request); /* also what is between members */
    ret_common->num_sequences = 0;
    ret_common->query_lens = ret_common->key_lens = ret_common->valid_lens = NULL;
    ret_common->valid_lens_per_query = false;
    ret_common->queries = ret_common->keys = ret_common->values = NULL;
    ret_common->positions = ret_common->key_positions = NULL;
    ret_common->axis_positions = ret_common->axis_key_positions = NULL;
    ret_common->causal = needs_mask(request) && request->causal;
    ret_common->prefix_lens = needs_mask(request) ? request->prefix_lens : NULL;
    ret_common->num_weights_heads = ret_common->num_weights_queries = 0; /* of none */
    ret_common->head_mask = NULL;
    ret_common->parallel = NULL;
}

uint64_t join_hash(const attn_model *model, const attn_request *request) {
    const struct arrays arrays = arrays_of(model, request);
    attn_request common;
    find_common(request, &common);
    uint64_t hash = hash_bytes(HASH_START, &model, sizeof model);
    hash = hash_bytes(hash, &common, sizeof common);

    for (enum array i = 0; i < NUM_ARRAYS; i++) {
        bool given = arrays.from[i] != NULL;
        hash = hash_bytes(hash, &given, sizeof given);
    }
    for (size_t h = 0; h < model->info.num_heads; h++) {
        float factor = mask_head_factor(request, h) + 0.0F; /* -0 becomes 0 */
        hash = hash_bytes(hash, &factor, sizeof factor);
    }
    return hash;
}

bool join_possible(const attn_model *model, const attn_request *a,
                   const attn_request *b) {
    const struct arrays of_a = arrays_of(model, a), of_b = arrays_of(model, b);
    attn_request common_a, common_b;

    if (!model->engine.native || model->info.projection.given || !wants_joined(a))
        return false;
    for (enum array i = 0; i < NUM_ARRAYS; i++) {
        if ((of_a.from[i] == NULL) != (of_b.from[i] == NULL))
            return false;
    }
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

/* Takes the arrays of a joined batch, of which each has what all requests have of it.
 * Returns their floats; SIZE_MAX: more than fit. */
static size_t join_lay_out(const attn_model *model, const attn_request *const *requests,
                           size_t count, void *memory, void *ret_to[NUM_ARRAYS]) {
    struct arrays sum = arrays_of(model, requests[0]);
    struct reserve block = {memory, 0};

    for (size_t r = 1; r < count; r++) {
        const struct arrays arrays = arrays_of(model, requests[r]);
        for (enum array i = 0; i < NUM_ARRAYS; i++)
            size_add_saturating(&sum.floats[i], arrays.floats[i]);
    }
    for (enum array i = 0; i < NUM_ARRAYS; i++)
        ret_to[i] = sum.floats[i] > 0 ? reserve_take(&block, sum.floats[i], 1) : NULL;
    return block.floats;
}

size_t join_bytes(const attn_model *model, const attn_request *const *requests,
                  size_t count) {
    void *to[NUM_ARRAYS];
    size_t floats = join_lay_out(model, requests, count, NULL, to), bytes;

    return size_mul(floats, sizeof(float), &bytes) ? bytes : SIZE_MAX;
}

/* Writes where the keys end that each query of a request attends to. */
static void write_valid_lens(const attn_request *request, size_t *to) {
    size_t first_query = 0, first_key = 0;

    for (size_t s = 0; s < request->num_sequences; s++) {
        struct mask mask;
        mask_init(&mask, request, s, first_query, first_key);
        for (size_t row = 0; row < request->query_lens[s]; row++)
            *to++ = mask_bound_keys(&mask, row).end;
        first_query += request->query_lens[s];
        first_key += request->key_lens[s];
    }
}

/* Copies one request, and moves where the next one goes past it. */
static void copy_request(const attn_model *model, const attn_request *request,
                         float *to[NUM_ARRAYS]) {
    const struct arrays arrays = arrays_of(model, request);

    write_valid_lens(request, (size_t *)(void *)to[VALID_LENS]);
    for (enum array i = 0; i < NUM_ARRAYS; i++) {
        if (arrays.from[i] != NULL)
            pace_copy(to[i], arrays.from[i], arrays.floats[i] * sizeof(float));
        to[i] += arrays.floats[i];
    }
}

void join_pack(const attn_model *model, const attn_request *const *requests, size_t count,
               void *memory, attn_request *ret_joined) {
    float *next[NUM_ARRAYS];
    void *to[NUM_ARRAYS];

    join_lay_out(model, requests, count, memory, to); /* fits, as in join_bytes() */
    *ret_joined = *requests[0];
    ret_joined->num_sequences = 0;
    ret_joined->query_lens = to[QUERY_LENS];
    ret_joined->key_lens = to[KEY_LENS];
    ret_joined->queries = to[QUERIES];
    ret_joined->keys = to[KEYS] != NULL ? to[KEYS] : to[QUERIES];
    ret_joined->values = to[VALUES] != NULL ? to[VALUES] : ret_joined->keys;
    ret_joined->valid_lens = to[VALID_LENS];
    ret_joined->valid_lens_per_query = true;
    ret_joined->positions = to[POSITIONS];
    ret_joined->key_positions = to[KEY_POSITIONS];
    ret_joined->axis_positions = to[AXIS_POSITIONS];
    ret_joined->axis_key_positions = to[AXIS_KEY_POSITIONS];
    ret_joined->causal = needs_mask(requests[0]) && requests[0]->causal;
    ret_joined->prefix_lens = needs_mask(requests[0]) ? requests[0]->prefix_lens : NULL;

    memcpy(next, to, sizeof next);
    for (size_t i = 0; i < count; i++) {
        ret_joined->num_sequences += requests[i]->num_sequences;
        copy_request(model, requests[i], next);
    }
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
