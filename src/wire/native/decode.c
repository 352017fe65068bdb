/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: decodes a native request, whose members scan.c has found: model, options,
 * tensors. */
#include "base/size.h"
#include "wire/json/list.h"
#include "wire/json/object.h"
#include "wire/json/tensor.h"
#include "wire/models.h"
#include "wire/native/lens.h"
#include "wire/native/native.h"
#include "wire/native/selection.h"
#include "wire/options.h"
#include "wire/tensor_check.h"

/* A body that is being decoded. */
struct native_decoder {
    struct wire_cursor text; /* for wire_cursor_at() */
    const struct wire_span *members;
    struct arena *arena;
};

static bool native_read_model(const struct native_decoder *decoder,
                              const attn_model *const *models, size_t num_models,
                              const attn_model **ret_model) {
    const struct wire_span *span = &decoder->members[WIRE_NATIVE_MODEL];
    char name[WIRE_WORD_MAX + 1];
    if (span->start != NULL && !wire_word_read(&decoder->text, span, "model", name))
        return false;
    return wire_model_find(span->start != NULL ? name : NULL, models, num_models,
                           ret_model, decoder->text.problem);
}

static bool native_read_options(const struct native_decoder *decoder,
                                const attn_model_info *info,
                                struct wire_request *request) {
    const struct wire_span *members = decoder->members;
    const struct wire_cursor *text = &decoder->text;
    attn_request *batch = &request->batch;
    batch->causal = info->mask.causal;
    batch->window = info->mask.window;
    return wire_bool_read(text, &members[WIRE_NATIVE_CAUSAL], "causal", &batch->causal) &&
           wire_window_read(text, &members[WIRE_NATIVE_WINDOW], &batch->window) &&
           wire_need_read(text, &members[WIRE_NATIVE_NEED],
                          &members[WIRE_NATIVE_NEED_WEIGHTS], batch) &&
           wire_need_weights_read(text, &members[WIRE_NATIVE_NEED_WEIGHTS],
                                  &batch->need_weights) &&
           wire_timeout_ms_read(text, &members[WIRE_NATIVE_TIMEOUT_MS],
                                &request->timeout_ns) &&
           wire_priority_read(text, &members[WIRE_NATIVE_PRIORITY], &request->priority);
}

static bool native_read_head_mask(const struct native_decoder *decoder,
                                  const attn_model_info *info, attn_request *batch) {
    const struct wire_span *span = &decoder->members[WIRE_NATIVE_HEAD_MASK];
    struct wire_cursor cursor = wire_cursor_at(&decoder->text, span);
    struct wire_place place = {.field = "head_mask"};
    size_t room = span->commas + 1, count;
    if (span->start == NULL)
        return true;

    float *mask = arena_alloc(decoder->arena, room, sizeof *mask);
    if (mask == NULL)
        return wire_problem_set_no_memory(cursor.problem);
    if (!wire_row_read(&cursor, &place, mask, mask + room, &count) ||
        !wire_head_mask_check(count, info, cursor.problem))
        return false;
    batch->head_mask = mask;
    return true;
}

/* wire_tensor_source of a body, whose decoder is the context. */
static bool native_read_tensor(const void *context, enum wire_tensor_id id,
                               size_t min_levels, size_t max_levels, bool *ret_given,
                               struct wire_tensor *ret_tensor) {
    static const struct {
        enum wire_native_member member;
        const char *name;
    } tensors[] = {[WIRE_TENSOR_QUERIES] = {WIRE_NATIVE_QUERIES, "queries"},
                   [WIRE_TENSOR_KEYS] = {WIRE_NATIVE_KEYS, "keys"},
                   [WIRE_TENSOR_VALUES] = {WIRE_NATIVE_VALUES, "values"}};
    const struct native_decoder *decoder = context;
    const struct wire_span *span = &decoder->members[tensors[id].member];

    *ret_given = span->start != NULL;
    return !*ret_given ||
           wire_tensor_read(&decoder->text, span, tensors[id].name, min_levels,
                            max_levels, decoder->arena, ret_tensor);
}

/* wire_positions_source of a body, whose decoder is the context. */
static bool native_read_positions(const void *context,
                                  const struct wire_positions *positions,
                                  const size_t **ret_list) {
    const struct native_decoder *decoder = context;
    const struct wire_span *span =
        &decoder
             ->members[positions->id == WIRE_TENSOR_QUERIES ? WIRE_NATIVE_POSITIONS
                                                            : WIRE_NATIVE_KEY_POSITIONS];
    return span->start == NULL ||
           wire_native_positions_read(&decoder->text, span, positions, decoder->arena,
                                      ret_list);
}

/* Reads everything but the model, which is known already. */
static bool native_read_request(const struct native_decoder *decoder,
                                const attn_model_info *info,
                                struct wire_request *request) {
    struct wire_tensors tensors;
    attn_request *batch = &request->batch;
    if (!native_read_options(decoder, info, request) ||
        !native_read_head_mask(decoder, info, batch) ||
        !wire_tensors_read(native_read_tensor, decoder, info, &tensors,
                           decoder->text.problem))
        return false;

    const struct wire_span *lens = &decoder->members[WIRE_NATIVE_VALID_LENS];
    wire_request_set_tensors(&tensors, request);
    return wire_native_selection_read(&decoder->text, decoder->members, decoder->arena,
                                      request) &&
           (lens->start == NULL ||
            wire_native_lens_read(&decoder->text, lens, &tensors.queries, &tensors.keys,
                                  decoder->arena, batch)) &&
           wire_positions_read(native_read_positions, decoder, &tensors, info, batch,
                               decoder->text.problem);
}

bool wire_native_decode(const char *body, const struct wire_native_scan *scan,
                        const attn_model *const *models, size_t num_models,
                        struct arena *arena, struct wire_request *ret_request,
                        struct wire_problem *ret_problem) {
    const struct native_decoder decoder = {
        {body, body, body, ret_problem}, scan->members, arena};
    struct wire_request request = {0};
    if (!native_read_model(&decoder, models, num_models, &request.model) ||
        !native_read_request(&decoder, attn_model_get_info(request.model), &request))
        return false;
    *ret_request = request;
    return true;
}

/* Returns the most bytes that the marks of weights_heads need: a byte for each head of
 * the largest model, since which one is named is not known yet. */
static size_t head_marks_cost(const struct wire_input *input,
                              const struct wire_native_scan *scan) {
    size_t max = 0;
    if (scan->members[WIRE_NATIVE_WEIGHTS_HEADS].start == NULL)
        return 0;

    for (size_t i = 0; i < input->num_models; i++) {
        size_t num_heads = attn_model_get_info(input->models[i])->num_heads;
        if (num_heads > max)
            max = num_heads;
    }
    return max;
}

bool wire_native_read(const struct wire_input *input, struct wire_request *ret_request,
                      struct wire_problem *ret_problem) {
    struct wire_native_scan scan;
    if (!wire_native_scan(input->body, input->size, &scan, ret_problem))
        return false;

    if (input->any_name)
        scan.members[WIRE_NATIVE_MODEL].start = NULL;
    size_t bytes = scan.decode_bytes;
    size_add_saturating(&bytes, head_marks_cost(input, &scan));
    return input->reserve(input->context, bytes, ret_problem) &&
           wire_native_decode(input->body, &scan, input->models, input->num_models,
                              input->arena, ret_request, ret_problem);
}
