/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: decodes a request in safetensors: its header, its options and its tensors. */
#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "wire/decimal/read.h"
#include "wire/json/cost.h"
#include "wire/json/value.h"
#include "wire/models.h"
#include "wire/names.h"
#include "wire/options.h"
#include "wire/safetensors/lens.h"
#include "wire/safetensors/safetensors.h"
#include "wire/selection.h"
#include "wire/tensor_check.h"

#include <stdio.h>
#include <string.h>

/* The most bytes that the header's own tables need for a byte of JSON. A tensor needs at
 * most 64 for an entry of at least 5 bytes, as in "":0, and a dimension needs 8 for at
 * least 2. */
#define TABLE_BYTES 16

_Static_assert(sizeof(struct safetensors_tensor) <= 64, "an entry of a header's table");

#define OPTIONS_LIST "model, causal, window, need, need_weights, timeout_ms and priority"

/* The strings of __metadata__. */
enum safetensors_option {
    OPTION_MODEL,
    OPTION_CAUSAL,
    OPTION_WINDOW,
    OPTION_NEED,
    OPTION_NEED_WEIGHTS,
    OPTION_TIMEOUT_MS,
    OPTION_PRIORITY,
    NUM_OPTIONS
};

static const char *const option_names[NUM_OPTIONS] = {
    [OPTION_MODEL] = "model",
    [OPTION_CAUSAL] = "causal",
    [OPTION_WINDOW] = "window",
    [OPTION_NEED] = "need",
    [OPTION_NEED_WEIGHTS] = "need_weights",
    [OPTION_TIMEOUT_MS] = "timeout_ms",
    [OPTION_PRIORITY] = "priority",
};

/* A body that is being decoded, and the request that it becomes. */
struct safetensors_decoder {
    struct wire_safetensors_body body;
    const char *options[NUM_OPTIONS]; /* NULL: left out */
    struct wire_request *request;
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

/* --- names --- */

/* Refuses a name; `what` is what it is not, and `advice` what to do. */
static bool refuse_name(const char *name, const char *what, const char *advice,
                        struct wire_problem *ret_problem) {
    char shown[sizeof ret_problem->field];
    const char *remedy = wire_name_remedy(name);
    snprintf(shown, sizeof shown, "%s", name);
    if (remedy != NULL)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, shown,
                                "'%.64s' is not %s; %s (options are strings in "
                                "__metadata__, all else is a tensor)",
                                shown, what, remedy);
    return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, shown,
                            "'%.64s' is not %s; %s", shown, what, advice);
}

static bool find_tensors(const struct safetensors_header *header,
                         struct wire_safetensors_body *body) {
    for (size_t i = 0; i < header->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        int id = 0;
        while (id < WIRE_SAFETENSORS_NUM_TENSORS &&
               strcmp(wire_safetensors_name((enum wire_safetensors_id)id),
                      tensor->name) != 0)
            id++;
        if (id == WIRE_SAFETENSORS_NUM_TENSORS)
            return refuse_name(
                tensor->name, "a tensor of a request",
                "remove it, or use one of queries, keys, values, valid_lens, positions, "
                "key_positions, head_mask, weights_heads, weights_queries, query_lens "
                "and key_lens (" OPTIONS_LIST " are strings in __metadata__)",
                body->problem);
        body->tensors[id] = tensor;
    }
    return true;
}

static bool find_options(const struct safetensors_header *header,
                         const char *options[NUM_OPTIONS],
                         struct wire_problem *ret_problem) {
    /* jansson does not change the object, but its functions have no const parameter. */
    json_t *metadata = (json_t *)(uintptr_t)safetensors_header_get_metadata(header);
    void *at = json_object_iter(metadata);

    for (; at != NULL; at = json_object_iter_next(metadata, at)) {
        const char *key = json_object_iter_key(at);
        size_t i = 0;
        while (i < NUM_OPTIONS && strcmp(option_names[i], key) != 0)
            i++;
        if (i < NUM_OPTIONS)
            options[i] = json_string_value(json_object_iter_value(at));
        else if (strcmp(key, "format") != 0) /* torch and others write it */
            return refuse_name(key, "an option in __metadata__",
                               "remove it, or use one of " OPTIONS_LIST
                               " (all else is a tensor)",
                               ret_problem);
    }
    return true;
}

/* --- options --- */

/* Sets *ret_index to the index of an option in `words`, which NULL ends. Leaves it as it
 * is when the option is left out. */
static bool find_word(const struct safetensors_decoder *decoder,
                      enum safetensors_option option, const char *const *words,
                      const char *expected, size_t *ret_index) {
    struct wire_problem *problem = decoder->body.problem;
    const char *value = decoder->options[option];
    for (size_t i = 0; value != NULL && words[i] != NULL; i++) {
        if (strcmp(words[i], value) == 0) {
            *ret_index = i;
            return true;
        }
    }
    if (value == NULL)
        return true;
    wire_problem_set(problem, WIRE_E_WRONG_TYPE, option_names[option],
                     "%s in __metadata__ is '%.40s'; send one of the strings %s",
                     option_names[option], value, expected);
    snprintf(problem->expected, sizeof problem->expected, "%s", expected);
    strcpy(problem->got, "\"string\"");
    return false;
}

/* Reads an option whose string must be a number of JSON. */
static bool read_number_option(const struct safetensors_decoder *decoder,
                               enum safetensors_option option) {
    struct wire_problem *problem = decoder->body.problem;
    struct wire_request *request = decoder->request;
    const char *value = decoder->options[option];
    if (value == NULL)
        return true;

    const struct wire_span span = {value, value + strlen(value), 0, 0};
    const struct wire_cursor cursor = {value, value, span.end, problem};
    if (wire_number_end(span.start, span.end) != span.end) {
        wire_problem_set(problem, WIRE_E_WRONG_TYPE, option_names[option],
                         "%s in __metadata__ is '%.40s'; send a string with a number",
                         option_names[option], value);
        strcpy(problem->expected, "\"number\"");
        strcpy(problem->got, "\"string\"");
        return false;
    }
    if (option == OPTION_WINDOW)
        return wire_window_read(&cursor, &span, &request->batch.window);
    return option == OPTION_PRIORITY
               ? wire_priority_read(&cursor, &span, &request->priority)
               : wire_timeout_ms_read(&cursor, &span, &request->timeout_ns);
}

/* Reads need, words with commas between them. */
static bool read_need(const struct safetensors_decoder *decoder) {
    const char *at = decoder->options[OPTION_NEED];
    struct wire_need need = {0};
    if (at == NULL)
        return true;
    if (decoder->options[OPTION_NEED_WEIGHTS] != NULL)
        return wire_refuse_both_needs(decoder->body.problem);

    for (bool more = true; more;) {
        at += strspn(at, " ");
        size_t end = strcspn(at, ","), size = end;
        while (size > 0 && at[size - 1] == ' ')
            size--;
        if (!wire_need_add(&need, at, size, decoder->body.problem))
            return false;
        at += end;
        more = *at++ == ',';
    }
    wire_need_apply(&need, &decoder->request->batch);
    return true;
}

static bool read_options(const struct safetensors_decoder *decoder,
                         const attn_model_info *info) {
    static const char *const causal[] = {"false", "true", NULL};
    static const char *const need[] = {"false", "true", "mean", NULL};
    static const attn_need_weights needs[] = {ATTN_WEIGHTS_NONE, ATTN_WEIGHTS_ALL,
                                              ATTN_WEIGHTS_MEAN};
    attn_request *batch = &decoder->request->batch;
    size_t causal_index = info->mask.causal, need_index = 0;

    batch->window = info->mask.window;
    if (!find_word(decoder, OPTION_CAUSAL, causal, "[\"false\",\"true\"]",
                   &causal_index) ||
        !find_word(decoder, OPTION_NEED_WEIGHTS, need, "[\"false\",\"true\",\"mean\"]",
                   &need_index))
        return false;
    batch->causal = causal_index == 1;
    batch->need_weights = needs[need_index];
    return read_need(decoder) && read_number_option(decoder, OPTION_WINDOW) &&
           read_number_option(decoder, OPTION_TIMEOUT_MS) &&
           read_number_option(decoder, OPTION_PRIORITY);
}

/* --- tensors --- */

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
    if (queries != NULL && queries->rank == 2 &&
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
    if (tensors[WIRE_SAFETENSORS_QUERY_LENS] != NULL &&
        tensors[WIRE_SAFETENSORS_QUERIES] != NULL &&
        !wire_safetensors_check_rank(body, WIRE_SAFETENSORS_QUERIES, 2, 2, shapes))
        return false;
    if (tensors[WIRE_SAFETENSORS_KEY_LENS] == NULL)
        return true;
    if (!check_key_lens_needed(body))
        return false;

    for (int id = WIRE_SAFETENSORS_KEYS; id <= WIRE_SAFETENSORS_VALUES; id++) {
        if (tensors[id] != NULL && !wire_safetensors_check_rank(
                                       body, (enum wire_safetensors_id)id, 2, 2, shapes))
            return false;
    }
    return true;
}

/* --- the request --- */

static bool read_selection(const struct safetensors_decoder *decoder,
                           enum wire_safetensors_id id, enum wire_selected which) {
    const struct wire_safetensors_body *body = &decoder->body;
    const struct safetensors_tensor *tensor = body->tensors[id];
    struct wire_indices indices;
    struct wire_integers integers;
    size_t *list;
    if (tensor == NULL)
        return true;
    if (!wire_safetensors_check_rank(body, id, 1, 1, "a list of indices, [N]") ||
        !wire_safetensors_open_integers(body, id, &integers, &list) ||
        !wire_indices_init(&indices, decoder->request, which, body->arena, body->problem))
        return false;

    for (size_t i = 0; i < tensor->elements; i++) {
        if (!wire_integers_read(&integers, i, &list[i], body->problem))
            return false;
        if (list[i] >= indices.limit) {
            char limit[WIRE_INDICES_LIMIT_MAX];
            wire_indices_limit(&indices, limit);
            return wire_integers_refuse(&integers, i, limit, 0, indices.limit - 1,
                                        body->problem);
        }
        if (!wire_indices_add(&indices, i, list[i], body->problem))
            return false;
        pace_add(sizeof(size_t));
    }
    wire_selection_set(decoder->request, which, list, tensor->elements);
    return true;
}

/* Reads everything but the model, which is known already. */
static bool safetensors_read_request(const struct safetensors_decoder *decoder) {
    const struct wire_safetensors_body *body = &decoder->body;
    struct wire_request *request = decoder->request;
    const attn_model_info *info = attn_model_get_info(request->model);
    struct wire_tensors tensors;
    if (!read_options(decoder, info) || !safetensors_read_head_mask(decoder, info) ||
        !check_lens_needed(body) ||
        !wire_tensors_read(safetensors_read_tensor, body, info, &tensors, body->problem))
        return false;

    wire_request_set_tensors(&tensors, request);
    request->packed = body->tensors[WIRE_SAFETENSORS_QUERY_LENS] != NULL ||
                      body->tensors[WIRE_SAFETENSORS_KEY_LENS] != NULL;
    request->in_body = wire_safetensors_is_in_body(body);
    return read_selection(decoder, WIRE_SAFETENSORS_WEIGHTS_HEADS, WIRE_SELECTED_HEADS) &&
           read_selection(decoder, WIRE_SAFETENSORS_WEIGHTS_QUERIES,
                          WIRE_SELECTED_QUERIES) &&
           wire_selection_check(request, body->problem) &&
           wire_safetensors_read_lens(body, &tensors.queries, &request->batch) &&
           wire_positions_read(wire_safetensors_read_positions, body, &tensors, info,
                               &request->batch, body->problem) &&
           wire_finite_check(&tensors, request, body->problem);
}

/* Decodes a body whose header was parsed. */
static bool decode_body(const struct wire_input *input,
                        const struct safetensors_header *header, const char *data,
                        struct wire_request *request, struct wire_problem *ret_problem) {
    struct safetensors_decoder decoder = {.body = {.data = (const unsigned char *)data,
                                                   .arena = input->arena,
                                                   .problem = ret_problem},
                                          .request = request};
    if (!find_tensors(header, &decoder.body) ||
        !find_options(header, decoder.options, ret_problem) ||
        !wire_model_find(input->any_name ? NULL : decoder.options[OPTION_MODEL],
                         input->models, input->num_models, &request->model, ret_problem))
        return false;

    size_t num_heads = attn_model_get_info(request->model)->num_heads;
    return input->reserve(input->context, wire_safetensors_cost(&decoder.body, num_heads),
                          ret_problem) &&
           safetensors_read_request(&decoder);
}

bool wire_safetensors_read(const struct wire_input *input,
                           struct wire_request *ret_request,
                           struct wire_problem *ret_problem) {
    struct safetensors_header header = {0};
    struct wire_request request = {0};
    const char *data = NULL;

    bool read = parse_body_header(input, &header, &data, ret_problem) &&
                decode_body(input, &header, data, &request, ret_problem);
    safetensors_header_deinit(&header);
    if (read)
        *ret_request = request;
    return read;
}
