/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: decodes a native request, whose members scan.c has found: model, options,
 * tensors. */
#include "base/size.h"
#include "wire/checks/given.h"
#include "wire/checks/stored.h"
#include "wire/checks/tensor_check.h"
#include "wire/json/list.h"
#include "wire/json/object.h"
#include "wire/json/tensor.h"
#include "wire/models.h"
#include "wire/native/native.h"
#include "wire/native/rows.h"
#include "wire/options.h"

#include <string.h>

static bool native_read_model(const struct wire_native_body *body,
                              const attn_model *const *models, size_t num_models,
                              const attn_model **ret_model) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_MODEL];
    char name[WIRE_WORD_MAX + 1];
    if (span->start != NULL && !wire_word_read(&body->text, span, "model", name))
        return false;
    return wire_model_find(span->start != NULL ? name : NULL, models, num_models,
                           ret_model, body->text.problem);
}

/* Reads the options that requests with and without a model have. */
static bool native_read_options(const struct wire_native_body *body,
                                struct wire_request *request, struct wire_need *need) {
    const struct wire_span *members = body->members;
    const struct wire_cursor *text = &body->text;
    attn_request *batch = &request->batch;
    return wire_bool_read(text, &members[WIRE_NATIVE_CAUSAL], "causal", &batch->causal) &&
           wire_window_read(text, &members[WIRE_NATIVE_WINDOW], &batch->window) &&
           wire_need_read(text, &members[WIRE_NATIVE_NEED], need) &&
           wire_timeout_ms_read(text, &members[WIRE_NATIVE_TIMEOUT_MS],
                                &request->timeout_ns) &&
           wire_priority_read(text, &members[WIRE_NATIVE_PRIORITY], &request->priority);
}

/* Reads what the reply of a model has. */
static bool native_read_need(const struct wire_native_body *body,
                             const struct wire_need *need, attn_request *batch) {
    const struct wire_span *members = body->members;
    if (members[WIRE_NATIVE_NEED].start != NULL) {
        if (members[WIRE_NATIVE_NEED_WEIGHTS].start != NULL)
            return wire_refuse_both_needs(body->text.problem);
        wire_need_apply(need, batch);
    }
    return wire_need_weights_read(&body->text, &members[WIRE_NATIVE_NEED_WEIGHTS],
                                  &batch->need_weights);
}

/* Reads a list of numbers. *ret_list is untouched when it is left out. */
static bool native_read_list(const struct wire_native_body *body,
                             enum wire_native_member member, const char *field,
                             const float **ret_list, size_t *ret_count) {
    const struct wire_span *span = &body->members[member];
    struct wire_cursor cursor = wire_cursor_at(&body->text, span);
    struct wire_place place = {.field = field};
    size_t room = span->commas + 1;
    if (span->start == NULL)
        return true;

    float *list = arena_alloc(body->arena, room, sizeof *list);
    if (list == NULL)
        return wire_problem_set_no_memory(cursor.problem);
    if (!wire_row_read(&cursor, &place, false, list, list + room, ret_count))
        return false;
    *ret_list = list;
    return true;
}

/* wire_tensor_source of a body, which is the context. */
static bool native_read_tensor(const void *context, enum wire_tensor_id id,
                               size_t min_levels, size_t max_levels, bool *ret_given,
                               struct wire_tensor *ret_tensor) {
    static const struct {
        enum wire_native_member member;
        const char *name;
    } tensors[] = {[WIRE_TENSOR_QUERIES] = {WIRE_NATIVE_QUERIES, "queries"},
                   [WIRE_TENSOR_KEYS] = {WIRE_NATIVE_KEYS, "keys"},
                   [WIRE_TENSOR_VALUES] = {WIRE_NATIVE_VALUES, "values"}};
    const struct wire_native_body *body = context;
    const struct wire_span *span = &body->members[tensors[id].member];

    *ret_given = span->start != NULL;
    const struct wire_tensor_form form = {
        .min = min_levels, .max = max_levels, .heads = body->heads_axis};
    return !*ret_given || wire_tensor_read_form(&body->text, span, tensors[id].name,
                                                &form, body->arena, ret_tensor);
}

/* Reads everything but the model, which is known already. */
static bool native_read_request(const struct wire_native_body *body,
                                const attn_model_info *info,
                                struct wire_request *request) {
    struct wire_tensors tensors;
    struct wire_need need = {0};
    attn_request *batch = &request->batch;
    size_t num_heads = 0;
    batch->causal = info->mask.causal;
    batch->window = info->mask.window;
    batch->chunk = info->mask.chunk;
    if (!native_read_options(body, request, &need) ||
        !native_read_need(body, &need, batch) ||
        !native_read_list(body, WIRE_NATIVE_HEAD_MASK, "head_mask", &batch->head_mask,
                          &num_heads) ||
        (batch->head_mask != NULL &&
         !wire_head_mask_check(num_heads, info, body->text.problem)) ||
        !wire_tensors_read(native_read_tensor, body, info, &tensors, body->text.problem))
        return false;

    wire_request_set_tensors(&tensors, request);
    need.words[WIRE_NEED_TARGET] |=
        body->targets_alone && body->members[WIRE_NATIVE_TARGETS].start != NULL;
    return wire_native_rows_read(body, &tensors, &need, request);
}

bool wire_native_decode(const char *body, const struct wire_native_scan *scan,
                        const attn_model *const *models, size_t num_models,
                        struct arena *arena, struct wire_request *ret_request,
                        struct wire_problem *ret_problem) {
    const struct wire_native_body decoder = {{body, body, body, ret_problem},
                                             scan->members,
                                             arena,
                                             false,
                                             scan->targets_alone};
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
    scan.targets_alone = input->targets_alone;
    size_t bytes = scan.decode_bytes;
    size_add_saturating(&bytes, head_marks_cost(input, &scan));
    return input->reserve(input->context, bytes, ret_problem) &&
           wire_native_decode(input->body, &scan, input->models, input->num_models,
                              input->arena, ret_request, ret_problem);
}

/* --- without a model --- */

/* Finds the layer of a capture that the request names: by a string, or an integer. */
static bool native_read_layer(const struct wire_native_body *body,
                              const struct capture_layers *capture,
                              const struct capture_layer **ret_layer) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_LAYER];
    struct wire_cursor cursor = wire_cursor_at(&body->text, span);
    struct wire_place place = {.field = "layer"};
    char name[WIRE_WORD_MAX + 1];
    struct wire_span text = *span;
    size_t number;

    if (span->start == NULL)
        return wire_stored_find(capture, NULL, 0, ret_layer, body->text.problem);
    if (*span->start == '"') {
        if (!wire_word_read(&body->text, span, "layer", name))
            return false;
        return wire_stored_find(capture, name, strlen(name), ret_layer,
                                body->text.problem);
    }
    return wire_uint_read(&cursor, &place, 0, &number, &text) &&
           wire_stored_find(capture, text.start, (size_t)(text.end - text.start),
                            ret_layer, body->text.problem);
}

/* wire_element_reader of query_rows, whose numbers are the context. */
static bool native_read_query_row(struct wire_cursor *cursor, struct wire_place *place,
                                  void *context) {
    struct wire_span text;
    size_t *rows = context;
    return wire_uint_read(cursor, place, 1, &rows[place->index[0]], &text);
}

static bool native_read_query_rows(const struct wire_native_body *body,
                                   struct wire_given *given) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_QUERY_ROWS];
    struct wire_cursor cursor = wire_cursor_at(&body->text, span);
    struct wire_place place = {.field = "query_rows"};
    size_t count;

    given->rows_given = span->start != NULL;
    return !given->rows_given ||
           (wire_list_read(&cursor, &place, 1, 2, native_read_query_row,
                           given->query_rows, &count) &&
            wire_list_check(&cursor, &place, 2, count, "the first row and the end"));
}

static bool native_read_given(const struct wire_native_body *body,
                              struct wire_given *given) {
    const struct wire_span *members = body->members;
    const struct wire_cursor *text = &body->text;
    given->has_scale = given->has_scale || members[WIRE_NATIVE_SCALE].start != NULL;
    given->need_given = members[WIRE_NATIVE_NEED].start != NULL;
    return wire_count_read(text, &members[WIRE_NATIVE_NUM_HEADS], "num_heads",
                           "a number of heads", &given->num_heads) &&
           wire_count_read(text, &members[WIRE_NATIVE_NUM_KV_HEADS], "num_kv_heads",
                           "a number of heads", &given->num_kv_heads) &&
           wire_number_read(text, &members[WIRE_NATIVE_SCALE], "scale", &given->scale) &&
           wire_number_read(text, &members[WIRE_NATIVE_SOFTCAP], "softcap",
                            &given->softcap) &&
           (members[WIRE_NATIVE_SOFTCAP].start == NULL ||
            wire_given_check_softcap(given->softcap, text->problem)) &&
           native_read_list(body, WIRE_NATIVE_SINKS, "sinks", &given->sinks,
                            &given->num_sinks) &&
           native_read_list(body, WIRE_NATIVE_SLOPES, "slopes", &given->slopes,
                            &given->num_slopes) &&
           native_read_query_rows(body, given);
}

/* Reads the bias, of 2 to 4 levels, as rows: in 4 levels these have two axes. */
static bool native_read_bias(const struct wire_native_body *body,
                             struct wire_request *request) {
    const struct wire_span *span = &body->members[WIRE_NATIVE_BIAS];
    struct wire_cursor cursor = wire_cursor_at(&body->text, span), ahead = cursor;
    struct wire_tensor tensor;
    size_t levels;
    if (span->start == NULL)
        return true;
    if (!wire_levels_read(&cursor, "bias", 2, 4, &levels))
        return false;

    const struct wire_tensor_form form = {
        .min = 2, .max = 3, .heads = wire_cursor_levels(&ahead) == 4, .nulls = true};
    if (!wire_tensor_read_form(&body->text, span, "bias", &form, body->arena, &tensor))
        return false;
    if (wire_tensor_len(&tensor) == WIRE_SHAPE_ANY)
        return wire_problem_set(body->text.problem, WIRE_E_UNEVEN_ROWS, "bias",
                                "bias has lists of several lengths on one level; send "
                                "as many everywhere");

    size_t rows = tensor.lens[0], width = tensor.width, first = tensor.num_sequences;
    struct wire_bias bias = {2, {rows, width}, tensor.rows};
    if (levels == 3)
        bias = (struct wire_bias){3, {first, rows, width}, tensor.rows};
    if (levels == 4)
        bias = (struct wire_bias){
            4, {first, rows, tensor.heads, width / tensor.heads}, tensor.rows};
    return wire_given_set_bias(&bias, request, body->text.problem);
}

/* Reads the tensors and what belongs to them. */
static bool native_read_given_tensors(const struct wire_input *input,
                                      const struct wire_native_body *body,
                                      struct wire_given *given,
                                      struct wire_request *request) {
    struct wire_problem *problem = body->text.problem;
    bool stored = given->stored != NULL;
    struct wire_tensors tensors;

    return (stored
                ? wire_stored_read(input, native_read_tensor, body, given, &tensors,
                                   problem)
                : wire_given_read(native_read_tensor, body, given, &tensors, problem)) &&
           wire_given_apply(given, &tensors, input->arena, request, problem) &&
           (!stored ||
            wire_stored_set_rows(given, input->arena, &request->batch, problem)) &&
           wire_native_rows_read(body, &tensors, &given->need, request) &&
           native_read_bias(body, request) &&
           (!stored || wire_stored_set_bias(given, request, problem)) &&
           wire_given_check_causal(&request->batch, problem);
}

bool wire_native_read_given(const struct wire_input *input,
                            struct wire_request *ret_request,
                            struct wire_problem *ret_problem) {
    const char *body = input->body;
    struct wire_given given = {.need.given = true};
    struct wire_request request = {0};
    struct wire_native_scan scan;
    if (!wire_native_scan_given(body, input->size, input->capture != NULL, &scan,
                                ret_problem))
        return false;

    const struct wire_native_body decoder = {{body, body, body, ret_problem},
                                             scan.members,
                                             input->arena,
                                             scan.heads_axis,
                                             false};
    size_t bytes = scan.decode_bytes;
    size_add_saturating(&bytes, wire_given_cost());
    if (!input->reserve(input->context, bytes, ret_problem) ||
        (input->capture != NULL &&
         !native_read_layer(&decoder, input->capture, &given.stored)))
        return false;
    if (given.stored != NULL)
        wire_stored_set_options(&given, &request.batch);
    if (!native_read_options(&decoder, &request, &given.need) ||
        !native_read_given(&decoder, &given) ||
        !native_read_given_tensors(input, &decoder, &given, &request))
        return false;
    *ret_request = request;
    return true;
}
