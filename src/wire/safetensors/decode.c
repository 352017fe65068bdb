/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: decodes a request in safetensors: its header, its options and its tensors. */
#include "base/error.h"
#include "base/size.h"
#include "wire/checks/given.h"
#include "wire/checks/stored.h"
#include "wire/checks/tensor_check.h"
#include "wire/json/cost.h"
#include "wire/json/object.h"
#include "wire/models.h"
#include "wire/safetensors/options.h"
#include "wire/safetensors/rows.h"
#include "wire/safetensors/safetensors.h"

#include <stdio.h>
#include <string.h>

/* The most bytes that the header's own tables need for a byte of JSON. A tensor needs at
 * most 64 for an entry of at least 5 bytes, as in "":0, and a dimension needs 8 for at
 * least 2. */
#define TABLE_BYTES 16

_Static_assert(sizeof(struct safetensors_tensor) <= 64, "an entry of a header's table");

/* A body that is being decoded, and the request that it becomes. */
struct safetensors_decoder {
    struct wire_safetensors_body body;
    struct wire_safetensors_options options;
    struct wire_request *request;
    bool targets_alone; /* see struct wire_input */
};

/* Refuses a body; `defect` says what is wrong with it. */
static bool refuse_body_format(const char *field, const char *defect,
                               struct wire_problem *ret_problem) {
    return wire_problem_set(ret_problem, WIRE_E_MALFORMED_SAFETENSORS, field,
                            "the body is not valid safetensors: %s; "
                            "write it with a safetensors library, "
                            "or send JSON as application/json",
                            defect);
}

/* --- header --- */

/* Reserves the memory that parsing the JSON needs. Finds what is nested too deeply. */
static bool reserve_header(const struct wire_input *input, const char *json, size_t size,
                           struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {json, json, json + size, ret_problem};
    struct wire_span span;
    size_t bytes = size * TABLE_BYTES;
    if (json[0] != '{')
        return refuse_body_format(NULL, "header does not begin with '{'", ret_problem);
    if (!wire_cursor_skip(&cursor, 0, &span)) {
        /* The remedy for a request in JSON, after "; ", is not that for a header. */
        const char *detail = ret_problem->detail, *remedy = strstr(detail, "; ");
        char defect[sizeof ret_problem->detail];
        snprintf(defect, sizeof defect, "header: %.*s",
                 remedy != NULL ? (int)(remedy - detail) : 200, detail);
        return refuse_body_format(NULL, defect, ret_problem);
    }

    /* jansson would refuse that too, but how deeply the rest is nested is not known. */
    if (wire_cursor_next(&cursor) != '\0' || cursor.at != cursor.end)
        return refuse_body_format(NULL, "trailing bytes after the header's object",
                                  ret_problem);
    wire_json_cost(span.start, (size_t)(span.end - span.start), &bytes);
    return input->reserve(input->context, bytes, ret_problem);
}

/* Parses the header. *ret_header must be released with safetensors_header_deinit() in any
 * case. */
static bool parse_body_header(const struct wire_input *input,
                              struct safetensors_header *ret_header,
                              const char **ret_data, struct wire_problem *ret_problem) {
    const char *json = input->body + SAFETENSORS_SIZE_BYTES;
    attn_error error;
    size_t size;
    if (safetensors_find_header((const unsigned char *)input->body, input->size,
                                WIRE_SAFETENSORS_HEADER_MAX, &size, &error) != ATTN_OK)
        return refuse_body_format(NULL, error.text, ret_problem);
    if (!reserve_header(input, json, size, ret_problem))
        return false;

    attn_status status = safetensors_header_parse(
        json, size, input->size - SAFETENSORS_SIZE_BYTES - size, ret_header, &error);
    if (status == ATTN_E_NOMEM)
        return wire_problem_set_no_memory(ret_problem);
    if (status != ATTN_OK)
        return refuse_body_format(ret_header->wrong, error.text, ret_problem);
    *ret_data = json + size;
    return true;
}

/* --- tensors --- */

/* Refuses a tensor of another name. */
static bool refuse_tensor(const struct safetensors_decoder *decoder, const char *name) {
    bool given = decoder->options.given;
    if (decoder->options.stored)
        return wire_safetensors_refuse_name(
            name, given, "a tensor of a request for a capture",
            "remove it, or use one of queries, query_rows, bias, sinks, slopes, "
            "valid_lens, positions, key_positions, weights_heads, weights_queries, "
            "spans, targets and top_in (" WIRE_OPTIONS_LIST_STORED
            " are strings in __metadata__)",
            decoder->body.problem);
    return wire_safetensors_refuse_name(
        name, given, "a tensor of a request",
        given
            ? "remove it, or use one of queries, keys, values, bias, sinks, slopes, "
              "valid_lens, positions, key_positions, weights_heads, weights_queries, "
              "spans, targets, top_in, query_lens and key_lens (" WIRE_OPTIONS_LIST_GIVEN
              " are strings in __metadata__)"
            : "remove it, or use one of queries, keys, values, valid_lens, positions, "
              "key_positions, head_mask, weights_heads, weights_queries, spans, "
              "targets, top_in, query_lens and key_lens (" WIRE_OPTIONS_LIST
              " are strings in __metadata__)",
        decoder->body.problem);
}

/* Returns whether a request has such a tensor. */
static bool has_tensor(enum wire_safetensors_id id,
                       const struct wire_safetensors_options *options) {
    switch (id) {
    case WIRE_SAFETENSORS_HEAD_MASK:
        return !options->given;
    case WIRE_SAFETENSORS_BIAS:
    case WIRE_SAFETENSORS_SINKS:
    case WIRE_SAFETENSORS_SLOPES:
        return options->given;
    case WIRE_SAFETENSORS_KEYS:
    case WIRE_SAFETENSORS_VALUES:
    case WIRE_SAFETENSORS_QUERY_LENS:
    case WIRE_SAFETENSORS_KEY_LENS:
        return !options->stored;
    case WIRE_SAFETENSORS_QUERY_ROWS:
        return options->stored;
    default:
        return true;
    }
}

static bool find_tensors(const struct safetensors_header *header,
                         struct safetensors_decoder *decoder) {
    for (size_t i = 0; i < header->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        int id = 0;
        while (id < WIRE_SAFETENSORS_NUM_TENSORS &&
               strcmp(wire_safetensors_name((enum wire_safetensors_id)id),
                      tensor->name) != 0)
            id++;
        if (id == WIRE_SAFETENSORS_NUM_TENSORS ||
            !has_tensor((enum wire_safetensors_id)id, &decoder->options))
            return refuse_tensor(decoder, tensor->name);
        decoder->body.tensors[id] = tensor;
    }
    return true;
}

static bool safetensors_read_head_mask(const struct safetensors_decoder *decoder,
                                       const attn_model_info *info) {
    const struct wire_safetensors_body *body = &decoder->body;
    const struct safetensors_tensor *mask = body->tensors[WIRE_SAFETENSORS_HEAD_MASK];
    return mask == NULL ||
           (wire_safetensors_check_rank(body, WIRE_SAFETENSORS_HEAD_MASK, 1, 1,
                                        "one number for each head, [H]") &&
            wire_safetensors_read_floats(body, WIRE_SAFETENSORS_HEAD_MASK,
                                         &decoder->request->batch.head_mask) &&
            wire_head_mask_check(mask->elements, info, body->problem));
}

/* wire_tensor_source of a body, which is the context. */
static bool safetensors_read_tensor(const void *context, enum wire_tensor_id id,
                                    size_t min_levels, size_t max_levels, bool *ret_given,
                                    struct wire_tensor *ret_tensor) {
    static const enum wire_safetensors_id ids[] = {
        [WIRE_TENSOR_QUERIES] = WIRE_SAFETENSORS_QUERIES,
        [WIRE_TENSOR_KEYS] = WIRE_SAFETENSORS_KEYS,
        [WIRE_TENSOR_VALUES] = WIRE_SAFETENSORS_VALUES};
    const struct wire_safetensors_body *body = context;

    *ret_given = body->tensors[ids[id]] != NULL;
    return !*ret_given || wire_safetensors_read_tensor(body, ids[id], min_levels,
                                                       max_levels, ret_tensor);
}

/* Checks that key_lens has keys or values that it belongs to, and is needed. */
static bool check_key_lens_needed(const struct wire_safetensors_body *body) {
    const struct safetensors_tensor *const *tensors = body->tensors;
    const struct safetensors_tensor *queries = tensors[WIRE_SAFETENSORS_QUERIES];
    if (tensors[WIRE_SAFETENSORS_KEYS] == NULL &&
        tensors[WIRE_SAFETENSORS_VALUES] == NULL)
        return wire_problem_set(body->problem, WIRE_E_MISSING_KEY, "keys",
                                "key_lens was sent without keys and values; "
                                "send one of them, or leave key_lens out");
    if (queries != NULL && queries->rank < wire_safetensors_batched_rank(body) &&
        tensors[WIRE_SAFETENSORS_QUERY_LENS] == NULL)
        return wire_problem_set(
            body->problem, WIRE_E_MISSING_KEY, "query_lens",
            "key_lens makes a batch of the keys, but queries is a single "
            "sequence; send query_lens, or leave key_lens out");
    return true;
}

/* Refuses lengths that no tensor needs, so that they are not ignored silently. */
static bool check_lens_needed(const struct wire_safetensors_body *body) {
    static const char *const shapes =
        "[sum of its lengths, width], without a batch axis, or leave its lengths out";
    const struct safetensors_tensor *const *tensors = body->tensors;
    size_t rank = wire_safetensors_batched_rank(body) - 1;
    if (tensors[WIRE_SAFETENSORS_QUERY_LENS] != NULL &&
        tensors[WIRE_SAFETENSORS_QUERIES] != NULL &&
        !wire_safetensors_check_rank(body, WIRE_SAFETENSORS_QUERIES, rank, rank, shapes))
        return false;
    if (tensors[WIRE_SAFETENSORS_KEY_LENS] == NULL)
        return true;
    if (!check_key_lens_needed(body))
        return false;

    for (int id = WIRE_SAFETENSORS_KEYS; id <= WIRE_SAFETENSORS_VALUES; id++) {
        if (tensors[id] != NULL &&
            !wire_safetensors_check_rank(body, (enum wire_safetensors_id)id, rank, rank,
                                         shapes))
            return false;
    }
    return true;
}

/* --- the request --- */

/* Sets the tensors of the request, and reads what belongs to their rows. */
static bool read_row_fields(const struct safetensors_decoder *decoder,
                            const struct wire_tensors *tensors,
                            const struct wire_need *need) {
    const struct wire_safetensors_body *body = &decoder->body;
    struct wire_request *request = decoder->request;

    wire_request_set_tensors(tensors, request);
    request->packed = body->tensors[WIRE_SAFETENSORS_QUERY_LENS] != NULL ||
                      body->tensors[WIRE_SAFETENSORS_KEY_LENS] != NULL;
    request->in_body = wire_safetensors_is_in_body(body);
    return wire_safetensors_read_rows(body, &decoder->options, tensors, need, request) &&
           wire_finite_check(tensors, request, body->problem);
}

/* Reads everything but the model, which is known already. */
static bool safetensors_read_request(const struct safetensors_decoder *decoder) {
    const struct wire_safetensors_body *body = &decoder->body;
    attn_request *batch = &decoder->request->batch;
    const attn_model_info *info = attn_model_get_info(decoder->request->model);
    struct wire_tensors tensors;
    struct wire_need need = {0};

    batch->causal = info->mask.causal;
    batch->window = info->mask.window;
    batch->chunk = info->mask.chunk;
    if (!wire_safetensors_read_options(&decoder->options, decoder->request, &need) ||
        !wire_safetensors_read_need_weights(&decoder->options, &batch->need_weights))
        return false;
    if (decoder->options.texts[WIRE_OPTION_NEED] != NULL)
        wire_need_apply(&need, batch);
    need.has[RESULT_TARGET_WEIGHTS] |=
        decoder->targets_alone && body->tensors[WIRE_SAFETENSORS_TARGETS] != NULL;
    return safetensors_read_head_mask(decoder, info) && check_lens_needed(body) &&
           wire_tensors_read(safetensors_read_tensor, body, info, &tensors,
                             body->problem) &&
           read_row_fields(decoder, &tensors, &need);
}

/* --- without a model --- */

/* Reads a list of numbers. *ret_list is untouched when it is left out. */
static bool read_head_list(const struct wire_safetensors_body *body,
                           enum wire_safetensors_id id, const float **ret_list,
                           size_t *ret_count) {
    if (body->tensors[id] == NULL)
        return true;
    *ret_count = body->tensors[id]->elements;
    return wire_safetensors_check_rank(body, id, 1, 1, "one number for each head, [H]") &&
           wire_safetensors_read_floats(body, id, ret_list);
}

static bool read_bias(const struct safetensors_decoder *decoder) {
    const struct wire_safetensors_body *body = &decoder->body;
    const struct safetensors_tensor *tensor = body->tensors[WIRE_SAFETENSORS_BIAS];
    struct wire_bias bias;
    if (tensor == NULL)
        return true;
    if (!wire_safetensors_check_rank(body, WIRE_SAFETENSORS_BIAS, 2, 4,
                                     "[Tq, Tk], [H, Tq, Tk] or [B, H, Tq, Tk]") ||
        !wire_safetensors_read_floats(body, WIRE_SAFETENSORS_BIAS, &bias.numbers))
        return false;
    bias.rank = tensor->rank;
    memcpy(bias.shape, tensor->shape, tensor->rank * sizeof *bias.shape);
    return wire_given_set_bias(&bias, decoder->request, body->problem);
}

/* Reads which stored queries are meant. */
static bool read_query_rows(const struct wire_safetensors_body *body,
                            struct wire_given *given) {
    struct wire_integers integers;
    size_t *room;

    given->rows_given = body->tensors[WIRE_SAFETENSORS_QUERY_ROWS] != NULL;
    if (!given->rows_given)
        return true;
    if (!wire_safetensors_check_rank(body, WIRE_SAFETENSORS_QUERY_ROWS, 1, 1,
                                     "the first row and the end, [2]") ||
        !wire_safetensors_open_integers(body, WIRE_SAFETENSORS_QUERY_ROWS, &integers,
                                        &room))
        return false;
    if (integers.shape[0] != 2)
        return wire_problem_set(body->problem, WIRE_E_SHAPE_MISMATCH, "query_rows",
                                "query_rows has %zu numbers; send the first row and the "
                                "end, [2]",
                                integers.shape[0]);
    return wire_integers_read(&integers, 0, &given->query_rows[0], body->problem) &&
           wire_integers_read(&integers, 1, &given->query_rows[1], body->problem);
}

static bool read_given_options(const struct safetensors_decoder *decoder,
                               struct wire_given *given) {
    const struct wire_safetensors_options *options = &decoder->options;
    const struct wire_safetensors_body *body = &decoder->body;
    bool softcap = options->texts[WIRE_OPTION_SOFTCAP] != NULL;

    given->has_scale = given->has_scale || options->texts[WIRE_OPTION_SCALE] != NULL;
    given->need_given = options->texts[WIRE_OPTION_NEED] != NULL;
    return wire_safetensors_read_options(options, decoder->request, &given->need) &&
           wire_safetensors_read_count(options, WIRE_OPTION_NUM_HEADS,
                                       "a number of heads", &given->num_heads) &&
           wire_safetensors_read_count(options, WIRE_OPTION_NUM_KV_HEADS,
                                       "a number of heads", &given->num_kv_heads) &&
           wire_safetensors_read_number(options, WIRE_OPTION_SCALE, &given->scale) &&
           wire_safetensors_read_number(options, WIRE_OPTION_SOFTCAP, &given->softcap) &&
           (!softcap || wire_given_check_softcap(given->softcap, body->problem)) &&
           read_head_list(body, WIRE_SAFETENSORS_SINKS, &given->sinks,
                          &given->num_sinks) &&
           read_head_list(body, WIRE_SAFETENSORS_SLOPES, &given->slopes,
                          &given->num_slopes) &&
           read_query_rows(body, given);
}

static bool safetensors_read_given(const struct wire_input *input,
                                   struct safetensors_decoder *decoder,
                                   const struct capture_layer *stored) {
    const struct wire_safetensors_body *body = &decoder->body;
    struct wire_given given = {.need.given = true, .stored = stored};
    struct wire_request *request = decoder->request;
    struct wire_problem *problem = body->problem;
    struct wire_tensors tensors;

    if (stored != NULL)
        wire_stored_set_options(&given, &request->batch);
    return read_given_options(decoder, &given) && check_lens_needed(body) &&
           (stored != NULL ? wire_stored_read(input, safetensors_read_tensor, body,
                                              &given, &tensors, problem)
                           : wire_given_read(safetensors_read_tensor, body, &given,
                                             &tensors, problem)) &&
           wire_given_apply(&given, &tensors, body->arena, request, problem) &&
           (stored == NULL ||
            wire_stored_set_rows(&given, body->arena, &request->batch, problem)) &&
           read_row_fields(decoder, &tensors, &given.need) && read_bias(decoder) &&
           (stored == NULL || wire_stored_set_bias(&given, request, problem)) &&
           wire_given_check_causal(&request->batch, problem);
}

/* --- the body --- */

/* Decodes a body whose header was parsed. */
static bool decode_body(const struct wire_input *input,
                        const struct safetensors_header *header, const char *data,
                        bool given, struct wire_request *request,
                        struct wire_problem *ret_problem) {
    struct safetensors_decoder decoder = {.body = {.data = (const unsigned char *)data,
                                                   .given = given,
                                                   .arena = input->arena,
                                                   .problem = ret_problem},
                                          .options = {.given = given,
                                                      .stored = input->capture != NULL,
                                                      .problem = ret_problem},
                                          .request = request,
                                          .targets_alone = input->targets_alone};
    const char *const *texts = decoder.options.texts;
    if (!find_tensors(header, &decoder) ||
        !wire_safetensors_find_options(header, &decoder.options) ||
        (!given && !wire_model_find(input->any_name ? NULL : texts[WIRE_OPTION_MODEL],
                                    input->models, input->num_models, &request->model,
                                    ret_problem)))
        return false;

    const struct capture_layer *stored = NULL;
    const char *layer = texts[WIRE_OPTION_LAYER];
    if (input->capture != NULL &&
        !wire_stored_find(input->capture, layer, layer != NULL ? strlen(layer) : 0,
                          &stored, ret_problem))
        return false;

    /* Without a model, there are at most as many heads as numbers. */
    const struct safetensors_tensor *queries =
        decoder.body.tensors[WIRE_SAFETENSORS_QUERIES];
    size_t bytes = given ? wire_given_cost() : 0, num_heads;
    if (given)
        num_heads = queries != NULL ? queries->elements : 0;
    else
        num_heads = attn_model_get_info(request->model)->num_heads;
    decoder.body.heads_axis = given && texts[WIRE_OPTION_NUM_HEADS] == NULL;
    size_add_saturating(&bytes, wire_safetensors_cost(&decoder.body, num_heads));
    return input->reserve(input->context, bytes, ret_problem) &&
           (given ? safetensors_read_given(input, &decoder, stored)
                  : safetensors_read_request(&decoder));
}

/* Reads a body, with or without a model. */
static bool read_body(const struct wire_input *input, bool given,
                      struct wire_request *ret_request,
                      struct wire_problem *ret_problem) {
    struct safetensors_header header = {0};
    struct wire_request request = {0};
    const char *data = NULL;

    bool read = parse_body_header(input, &header, &data, ret_problem) &&
                decode_body(input, &header, data, given, &request, ret_problem);
    safetensors_header_deinit(&header);
    if (read)
        *ret_request = request;
    return read;
}

bool wire_safetensors_read(const struct wire_input *input,
                           struct wire_request *ret_request,
                           struct wire_problem *ret_problem) {
    return read_body(input, false, ret_request, ret_problem);
}

bool wire_safetensors_read_given(const struct wire_input *input,
                                 struct wire_request *ret_request,
                                 struct wire_problem *ret_problem) {
    return read_body(input, true, ret_request, ret_problem);
}
