/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: the envelope of a request: JSON, keys, model, options. */
#include "wire/json/list.h"
#include "wire/json/tensor.h"
#include "wire/json/value.h"
#include "wire/models.h"
#include "wire/native/lens.h"
#include "wire/native/native.h"
#include "wire/native/selection.h"
#include "wire/tensor_check.h"

#include <stdio.h>

/* What is being decoded, and with what. */
struct decoder {
    const char *body;
    const struct wire_span *members;
    struct arena *arena;
    struct wire_problem *problem;
};

/* Parses a member with jansson: a new reference in *ret_value, NULL when it was left out.
 */
static bool load(const struct decoder *decoder, enum wire_member member,
                 json_t **ret_value) {
    const struct wire_span *span = &decoder->members[member];
    *ret_value = NULL;
    if (span->start == NULL)
        return true;
    *ret_value = wire_json_load(decoder->body, span, decoder->problem);
    return *ret_value != NULL;
}

static bool read_model(const struct decoder *decoder, const attn_model *const *models,
                       size_t num_models, const attn_model **ret_model) {
    json_t *value;
    if (!load(decoder, WIRE_MODEL, &value))
        return false;
    const struct wire_place place = {.field = "model"};
    bool found =
        value == NULL || json_is_string(value)
            ? wire_model_find(json_string_value(value), models, num_models, ret_model,
                              decoder->problem)
            : wire_refuse_type(&place, "string", wire_json_type(value), decoder->problem);
    json_decref(value);
    return found;
}

static bool read_causal(const struct decoder *decoder, const attn_model_info *info,
                        attn_request *batch) {
    const struct wire_place place = {.field = "causal"};
    json_t *value;
    if (!load(decoder, WIRE_CAUSAL, &value))
        return false;
    bool read =
        value == NULL || json_is_boolean(value) ||
        wire_refuse_type(&place, "boolean", wire_json_type(value), decoder->problem);
    batch->causal = value == NULL ? info->causal : json_is_true(value);
    json_decref(value);
    return read;
}

/* Sets what `value` asks for; false when it is none of the three. */
static bool choose_weights(const json_t *value, attn_request *batch) {
    if (value == NULL || json_is_false(value))
        batch->need_weights = ATTN_WEIGHTS_NONE;
    else if (json_is_true(value))
        batch->need_weights = ATTN_WEIGHTS_ALL;
    else if (json_is_string(value) && strcmp(json_string_value(value), "mean") == 0)
        batch->need_weights = ATTN_WEIGHTS_MEAN;
    else
        return false;
    return true;
}

static bool read_need_weights(const struct decoder *decoder, attn_request *batch) {
    struct wire_problem *problem = decoder->problem;
    json_t *value;
    if (!load(decoder, WIRE_NEED_WEIGHTS, &value))
        return false;
    bool read = choose_weights(value, batch);
    if (!read) {
        wire_problem_set(
            problem, WIRE_E_WRONG_TYPE, "need_weights",
            "need_weights is none of its three values; send false, true (the "
            "weights of every head) or \"mean\" (over the heads)");
        strcpy(problem->expected, "[false,true,\"mean\"]");
        snprintf(problem->got, sizeof problem->got, "\"%s\"", wire_json_type(value));
    }
    json_decref(value);
    return read;
}

static bool read_head_mask(const struct decoder *decoder, const attn_model_info *info,
                           attn_request *batch) {
    const struct wire_span *span = &decoder->members[WIRE_HEAD_MASK];
    struct wire_problem *problem = decoder->problem;
    struct wire_cursor cursor = {decoder->body, span->start, span->end, problem};
    struct wire_place place = {.field = "head_mask"};
    size_t room = span->commas + 1, count;
    if (span->start == NULL)
        return true;
    float *mask = arena_alloc(decoder->arena, room, sizeof *mask);
    if (mask == NULL) {
        wire_problem_set_no_memory(problem);
        return false;
    }
    if (!wire_row_read(&cursor, &place, mask, mask + room, &count))
        return false;
    if (!wire_head_mask_check(count, info, problem))
        return false;
    batch->head_mask = mask;
    return true;
}

/* Reads queries, keys and values, checked against the model and each other. */
/* Reads keys or values, which have a batch axis if queries have. */
static bool read_like_queries(const char *body, const struct wire_span *span,
                              const char *field, const struct wire_tensor *queries,
                              struct arena *arena, struct wire_tensor *ret_tensor,
                              struct wire_problem *ret_problem) {
    size_t levels = queries->batched ? WIRE_LEVELS_BATCHED : WIRE_LEVELS_UNBATCHED;
    return wire_tensor_read(body, span, field, levels, levels, arena, ret_tensor,
                            ret_problem);
}

/* Reads queries, keys and values, checked against the model and each other. */
static bool read_tensors(const char *body, const struct wire_span *members,
                         const attn_model_info *model, struct arena *arena,
                         struct wire_tensors *ret_tensors,
                         struct wire_problem *ret_problem) {
    struct wire_tensors tensors = {0};
    const struct wire_span *queries = &members[WIRE_QUERIES];
    const struct wire_span *keys = &members[WIRE_KEYS], *values = &members[WIRE_VALUES];
    tensors.keys_given = keys->start != NULL;
    tensors.values_given = values->start != NULL;
    if (queries->start == NULL) {
        wire_problem_set(ret_problem, WIRE_E_MISSING_KEY, "queries",
                         "queries is required; send numbers [B][Tq][%zu] or [Tq][%zu]",
                         model->query_size, model->query_size);
        return false;
    }
    if (!wire_tensor_read(body, queries, "queries", WIRE_LEVELS_UNBATCHED,
                          WIRE_LEVELS_BATCHED, arena, &tensors.queries, ret_problem) ||
        !wire_queries_check(&tensors, model, ret_problem) ||
        (tensors.keys_given && !read_like_queries(body, keys, "keys", &tensors.queries,
                                                  arena, &tensors.keys, ret_problem)) ||
        !wire_keys_check(&tensors, model, ret_problem) ||
        (tensors.values_given &&
         !read_like_queries(body, values, "values", &tensors.queries, arena,
                            &tensors.values, ret_problem)) ||
        !wire_values_check(&tensors, model, ret_problem))
        return false;
    *ret_tensors = tensors;
    return true;
}

/* Reads everything but the model. */
static bool read_request(const struct decoder *decoder, const attn_model_info *info,
                         struct wire_request *request) {
    struct wire_tensors tensors;
    attn_request *batch = &request->batch;
    if (!read_causal(decoder, info, batch) || !read_need_weights(decoder, batch) ||
        !read_head_mask(decoder, info, batch) ||
        !read_tensors(decoder->body, decoder->members, info, decoder->arena, &tensors,
                      decoder->problem))
        return false;
    wire_request_set_tensors(&tensors, request);
    const struct wire_span *lens = &decoder->members[WIRE_VALID_LENS];
    return wire_native_selection_read(decoder->body, decoder->members, decoder->arena,
                                      request, decoder->problem) &&
           (lens->start == NULL ||
            wire_lens_read(decoder->body, lens, &tensors.queries, &tensors.keys,
                           decoder->arena, batch, decoder->problem));
}

bool wire_native_decode(const char *body, const struct wire_native_scan *scan,
                        const attn_model *const *models, size_t num_models,
                        struct arena *arena, struct wire_request *ret_request,
                        struct wire_problem *ret_problem) {
    const struct decoder decoder = {body, scan->members, arena, ret_problem};
    struct wire_request request = {0};
    if (!read_model(&decoder, models, num_models, &request.model) ||
        !read_request(&decoder, attn_model_get_info(request.model), &request))
        return false;
    *ret_request = request;
    return true;
}

bool wire_native_read(const struct wire_input *input, struct wire_request *ret_request,
                      struct wire_problem *ret_problem) {
    struct wire_native_scan scan;
    return wire_native_scan(input->body, input->size, &scan, ret_problem) &&
           input->reserve(input->context, scan.decode_bytes, ret_problem) &&
           wire_native_decode(input->body, &scan, input->models, input->num_models,
                              input->arena, ret_request, ret_problem);
}
