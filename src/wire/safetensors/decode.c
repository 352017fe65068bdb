/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c: a request in safetensors: header, names and options. */
#include "base/size.h"
#include "wire/json/cost.h"
#include "wire/json/value.h"
#include "wire/models.h"
#include "wire/safetensors/safetensors.h"
#include "wire/safetensors/tensors.h"
#include "wire/selection.h"
#include "wire/tensor_check.h"

#include <stdio.h>
#include <string.h>

/* Bytes that the parser's own tables take for each byte of header, at most: a tensor of
 * 64 for an entry of 5, as in "":0, and 8 for a dimension of 2. */
#define TABLE_BYTES 16

struct options {
    const char *model, *causal, *need_weights; /* NULL: left out */
};

/* What is read, and where to. */
struct reader {
    struct wire_parts parts;
    struct options options;
    struct wire_request *request;
};

static bool refuse_format(const char *field, const char *what,
                          struct wire_problem *ret_problem) {
    wire_problem_set(ret_problem, WIRE_E_MALFORMED_SAFETENSORS, field,
                     "the body, read as safetensors: %s; write it with a safetensors "
                     "library, or send JSON as application/json",
                     what);
    return false;
}

/* --- header --- */

/* Reserves what parsing the JSON takes. Finds what is nested too deeply. */
static bool reserve_header(const struct wire_input *input, const char *json, size_t size,
                           struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {json, json, json + size, ret_problem};
    struct wire_span span;
    size_t bytes = size * TABLE_BYTES;
    if (json[0] != '{')
        return refuse_format(NULL, "header does not begin with '{'", ret_problem);
    if (!wire_cursor_skip(&cursor, 0, &span)) {
        char detail[sizeof ret_problem->detail];
        snprintf(detail, sizeof detail, "header: %.200s", ret_problem->detail);
        return refuse_format(NULL, detail, ret_problem);
    }
    /* jansson would find that too, but the depth of what follows is not known */
    if (wire_cursor_next(&cursor) != '\0' || cursor.at != cursor.end)
        return refuse_format(NULL, "header goes on behind its object", ret_problem);
    wire_json_cost(span.start, (size_t)(span.end - span.start), &bytes);
    return input->reserve(input->context, bytes, ret_problem);
}

/* Parses the header; *ret_header must be deinit'ed whatever comes of it. */
static bool parse_header(const struct wire_input *input,
                         struct safetensors_header *ret_header, const char **ret_data,
                         struct wire_problem *ret_problem) {
    const char *json = input->body + SAFETENSORS_LENGTH_BYTES;
    attn_error error;
    size_t size;
    if (safetensors_find_header((const unsigned char *)input->body, input->size,
                                WIRE_SAFETENSORS_HEADER_MAX, &size, &error) != ATTN_OK)
        return refuse_format(NULL, error.text, ret_problem);
    if (!reserve_header(input, json, size, ret_problem))
        return false;
    wire_json_watch();
    attn_status status = safetensors_header_parse(
        json, size, input->size - SAFETENSORS_LENGTH_BYTES - size, ret_header, &error);
    if (status == ATTN_E_NOMEM || wire_json_ran_short()) {
        wire_problem_set_no_memory(ret_problem);
        return false;
    }
    if (status != ATTN_OK)
        return refuse_format(ret_header->wrong, error.text, ret_problem);
    *ret_data = json + size;
    return true;
}

/* --- names --- */

static bool refuse_unknown(const char *name, const char *known,
                           struct wire_problem *ret_problem) {
    char shown[sizeof ret_problem->field];
    snprintf(shown, sizeof shown, "%s", name);
    wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, shown,
                     "'%.64s' is no %s; leave it out", shown, known);
    return false;
}

static bool find_parts(const struct safetensors_header *header,
                       struct wire_parts *parts) {
    for (size_t i = 0; i < header->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        int part = 0;
        while (part < WIRE_NUM_PARTS &&
               strcmp(wire_part_name((enum wire_part)part), tensor->name) != 0)
            part++;
        if (part == WIRE_NUM_PARTS)
            return refuse_unknown(
                tensor->name,
                "tensor of a request. Known are queries, keys, values, valid_lens, "
                "head_mask, weights_heads, weights_queries, query_lens and key_lens, and "
                "in __metadata__ model, causal and need_weights",
                parts->problem);
        parts->tensors[part] = tensor;
    }
    return true;
}

static bool find_options(const struct safetensors_header *header, struct options *options,
                         struct wire_problem *ret_problem) {
    const json_t *metadata = safetensors_header_get_metadata(header);
    /* jansson takes no const object here, though it does not change it */
    void *at = json_object_iter((json_t *)(uintptr_t)metadata);
    for (; at != NULL; at = json_object_iter_next((json_t *)(uintptr_t)metadata, at)) {
        const char *key = json_object_iter_key(at);
        const char *value = json_string_value(json_object_iter_value(at));
        if (strcmp(key, "model") == 0)
            options->model = value;
        else if (strcmp(key, "causal") == 0)
            options->causal = value;
        else if (strcmp(key, "need_weights") == 0)
            options->need_weights = value;
        else if (strcmp(key, "format") != 0) /* torch and others write it */
            return refuse_unknown(key,
                                  "option in __metadata__. Known are model, causal and "
                                  "need_weights; all else is a tensor",
                                  ret_problem);
    }
    return true;
}

/* --- options --- */

/* Sets *ret_index to the place of `value` among `choices`, whose end is NULL. */
static bool choose(const char *field, const char *value, const char *const *choices,
                   const char *expected, size_t *ret_index,
                   struct wire_problem *ret_problem) {
    size_t i = 0;
    while (choices[i] != NULL && strcmp(choices[i], value) != 0)
        i++;
    if (choices[i] != NULL) {
        *ret_index = i;
        return true;
    }
    wire_problem_set(ret_problem, WIRE_E_WRONG_TYPE, field,
                     "%s in __metadata__ is '%.40s'; send one of the strings %s", field,
                     value, expected);
    snprintf(ret_problem->expected, sizeof ret_problem->expected, "%s", expected);
    strcpy(ret_problem->got, "\"string\"");
    return false;
}

static bool read_options(const struct reader *reader, const attn_model_info *info) {
    static const char *const causal[] = {"false", "true", NULL};
    static const char *const need[] = {"false", "true", "mean", NULL};
    static const attn_need_weights needs[] = {ATTN_WEIGHTS_NONE, ATTN_WEIGHTS_ALL,
                                              ATTN_WEIGHTS_MEAN};
    const struct options *options = &reader->options;
    attn_request *batch = &reader->request->batch;
    size_t index = info->causal;
    if (options->causal != NULL &&
        !choose("causal", options->causal, causal, "[\"false\",\"true\"]", &index,
                reader->parts.problem))
        return false;
    batch->causal = index == 1;
    index = 0;
    if (options->need_weights != NULL &&
        !choose("need_weights", options->need_weights, need,
                "[\"false\",\"true\",\"mean\"]", &index, reader->parts.problem))
        return false;
    batch->need_weights = needs[index];
    return true;
}

/* --- tensors --- */

static bool read_head_mask(const struct reader *reader, const attn_model_info *info) {
    const struct wire_parts *parts = &reader->parts;
    const struct safetensors_tensor *mask = parts->tensors[WIRE_PART_HEAD_MASK];
    return mask == NULL || (wire_part_check_rank(parts, WIRE_PART_HEAD_MASK, 1, 1,
                                                 "one number for each head, [H]") &&
                            wire_part_read_floats(parts, WIRE_PART_HEAD_MASK,
                                                  &reader->request->batch.head_mask) &&
                            wire_head_mask_check(mask->elements, info, parts->problem));
}

/* Returns the tensor that has the lengths of queries, or of keys and values; NULL when
 * they have a batch axis, or none at all. */
static const enum wire_part *find_lens(const struct wire_parts *parts,
                                       enum wire_part part) {
    static const enum wire_part lens[] = {WIRE_PART_QUERY_LENS, WIRE_PART_KEY_LENS};
    if (part != WIRE_PART_QUERIES && parts->tensors[WIRE_PART_KEY_LENS] != NULL)
        return &lens[1];
    return parts->tensors[WIRE_PART_QUERY_LENS] != NULL ? &lens[0] : NULL;
}

/* wire_tensor_source of a body; the context is its reader. */
static bool safetensors_read_tensor(const void *context, enum wire_tensor_id id,
                                    size_t min_levels, size_t max_levels, bool *ret_given,
                                    struct wire_tensor *ret_tensor) {
    static const enum wire_part ids[] = {[WIRE_TENSOR_QUERIES] = WIRE_PART_QUERIES,
                                         [WIRE_TENSOR_KEYS] = WIRE_PART_KEYS,
                                         [WIRE_TENSOR_VALUES] = WIRE_PART_VALUES};
    const struct reader *reader = context;
    enum wire_part part = ids[id];

    *ret_given = reader->parts.tensors[part] != NULL;
    return !*ret_given ||
           wire_part_read_tensor(&reader->parts, part, find_lens(&reader->parts, part),
                                 min_levels, max_levels, ret_tensor);
}

/* Refuses lengths that nothing needs, so that none is overlooked. */
static bool check_lens_needed(const struct wire_parts *parts) {
    static const char *const why = "[sum of its lengths, width], without a batch axis, "
                                   "or leave its lengths out";
    const struct safetensors_tensor *const *tensors = parts->tensors;
    if (tensors[WIRE_PART_QUERY_LENS] != NULL && tensors[WIRE_PART_QUERIES] != NULL &&
        !wire_part_check_rank(parts, WIRE_PART_QUERIES, 2, 2, why))
        return false;
    if (tensors[WIRE_PART_KEY_LENS] == NULL)
        return true;
    if (tensors[WIRE_PART_KEYS] == NULL && tensors[WIRE_PART_VALUES] == NULL) {
        wire_problem_set(parts->problem, WIRE_E_MISSING_KEY, "keys",
                         "key_lens was sent without keys and values; send these, or "
                         "leave it out");
        return false;
    }
    if (tensors[WIRE_PART_QUERIES] != NULL && tensors[WIRE_PART_QUERIES]->rank == 2 &&
        tensors[WIRE_PART_QUERY_LENS] == NULL) {
        wire_problem_set(parts->problem, WIRE_E_MISSING_KEY, "query_lens",
                         "key_lens makes a batch of the keys, but queries is a single "
                         "sequence; send query_lens, or leave key_lens out");
        return false;
    }
    for (int part = WIRE_PART_KEYS; part <= WIRE_PART_VALUES; part++) {
        if (tensors[part] != NULL &&
            !wire_part_check_rank(parts, (enum wire_part)part, 2, 2, why))
            return false;
    }
    return true;
}

/* Checks the shape of valid_lens; *ret_per_query says which it is. */
static bool check_valid_lens(const struct reader *reader,
                             const struct wire_tensors *tensors, bool *ret_per_query) {
    const struct wire_parts *parts = &reader->parts;
    const struct safetensors_tensor *lens = parts->tensors[WIRE_PART_VALID_LENS];
    const struct wire_tensor *queries = &tensors->queries;
    bool padded = parts->tensors[WIRE_PART_QUERIES]->rank == WIRE_LEVELS_BATCHED;
    if (!wire_part_check_rank(parts, WIRE_PART_VALID_LENS, queries->batched ? 1 : 0,
                              padded ? 2 : 1,
                              padded             ? "[B] or [B, Tq]"
                              : queries->batched ? "[B] or [sum of query_lens]"
                                                 : "a single number or [Tq]"))
        return false;
    *ret_per_query =
        padded ? lens->rank == 2 : lens->rank == 1 && lens->elements == queries->num_rows;
    bool fits = *ret_per_query && padded
                    ? lens->shape[0] == queries->num_sequences &&
                          lens->shape[1] == queries->lens[0]
                    : *ret_per_query || (lens->elements == queries->num_sequences &&
                                         (queries->batched || lens->rank == 0));
    if (fits)
        return true;
    wire_problem_set(parts->problem, WIRE_E_SHAPE_MISMATCH, "valid_lens",
                     "valid_lens has %zu numbers, but queries has %zu sequences of %zu "
                     "rows in all; send one for each sequence, or one for each row",
                     lens->elements, queries->num_sequences, queries->num_rows);
    size_t expected[] = {queries->num_sequences, queries->lens[0]};
    if (!queries->batched)
        expected[0] = queries->num_rows;
    wire_shape_print(parts->problem->expected, expected, lens->rank);
    wire_shape_print(parts->problem->got, lens->shape, lens->rank);
    return false;
}

static bool read_valid_lens(const struct reader *reader,
                            const struct wire_tensors *tensors) {
    const struct wire_parts *parts = &reader->parts;
    attn_request *batch = &reader->request->batch;
    size_t *lens, i = 0;
    bool per_query;
    if (parts->tensors[WIRE_PART_VALID_LENS] == NULL)
        return true;
    if (!check_valid_lens(reader, tensors, &per_query) ||
        !wire_part_read_integers(parts, WIRE_PART_VALID_LENS, 0, &lens))
        return false;
    for (size_t b = 0; b < batch->num_sequences; b++) {
        size_t count = per_query ? batch->query_lens[b] : 1;
        for (size_t q = 0; q < count; q++, i++) {
            if (lens[i] <= batch->key_lens[b])
                continue;
            bool padded = parts->tensors[WIRE_PART_VALID_LENS]->rank == 2;
            struct wire_place place = {.field = "valid_lens",
                                       .depth =
                                           parts->tensors[WIRE_PART_VALID_LENS]->rank,
                                       .index = {padded ? b : i, q}};
            char limit[64];
            snprintf(limit, sizeof limit, "its sequence has %zu keys",
                     batch->key_lens[b]);
            return wire_refuse_int_range(&place, (int64_t)lens[i], 0, batch->key_lens[b],
                                         limit, parts->problem);
        }
    }
    batch->valid_lens = lens;
    batch->valid_lens_per_query = per_query;
    return true;
}

static bool read_selection(const struct reader *reader, enum wire_part part,
                           enum wire_selected which) {
    const struct wire_parts *parts = &reader->parts;
    const struct safetensors_tensor *tensor = parts->tensors[part];
    struct wire_indices indices;
    size_t *list;
    if (tensor == NULL)
        return true;
    if (!wire_part_check_rank(parts, part, 1, 1, "a list of indices, [N]") ||
        !wire_part_read_integers(parts, part, 0, &list) ||
        !wire_indices_init(&indices, reader->request, which, parts->arena,
                           parts->problem))
        return false;

    for (size_t i = 0; i < tensor->elements; i++) {
        const struct wire_place at = {.field = indices.field, .depth = 1, .index = {i}};
        if (list[i] >= indices.limit) {
            char limit[WIRE_INDICES_LIMIT_MAX];
            wire_indices_limit(&indices, limit);
            return wire_refuse_int_range(&at, (int64_t)list[i], 0, indices.limit - 1,
                                         limit, parts->problem);
        }
        if (!wire_indices_add(&indices, i, list[i], parts->problem))
            return false;
    }
    wire_selection_set(reader->request, which, list, tensor->elements);
    return true;
}

/* Reads everything but the model. */
static bool read_request(const struct reader *reader) {
    const struct wire_parts *parts = &reader->parts;
    const attn_model_info *info = attn_model_get_info(reader->request->model);
    struct wire_request *request = reader->request;
    struct wire_tensors tensors;
    if (!read_options(reader, info) || !read_head_mask(reader, info) ||
        !check_lens_needed(parts) ||
        !wire_tensors_read(safetensors_read_tensor, reader, info, &tensors,
                           parts->problem))
        return false;
    wire_request_set_tensors(&tensors, request);
    request->packed = parts->tensors[WIRE_PART_QUERY_LENS] != NULL ||
                      parts->tensors[WIRE_PART_KEY_LENS] != NULL;
    return read_selection(reader, WIRE_PART_WEIGHTS_HEADS, WIRE_SELECTED_HEADS) &&
           read_selection(reader, WIRE_PART_WEIGHTS_QUERIES, WIRE_SELECTED_QUERIES) &&
           wire_selection_check(request, parts->problem) &&
           read_valid_lens(reader, &tensors);
}

/* Reads all that stands behind a header. */
static bool read_body(const struct wire_input *input,
                      const struct safetensors_header *header, const char *data,
                      struct wire_request *request, struct wire_problem *ret_problem) {
    struct reader reader = {.parts = {.data = (const unsigned char *)data,
                                      .arena = input->arena,
                                      .problem = ret_problem},
                            .request = request};
    if (!find_parts(header, &reader.parts) ||
        !find_options(header, &reader.options, ret_problem) ||
        !wire_model_find(reader.options.model, input->models, input->num_models,
                         &request->model, ret_problem) ||
        !input->reserve(input->context, wire_parts_cost(&reader.parts), ret_problem) ||
        !read_request(&reader))
        return false;
    for (int i = 0; i < WIRE_NUM_PARTS; i++) {
        if (reader.parts.tensors[i] != NULL &&
            (i <= WIRE_PART_VALUES || i == WIRE_PART_HEAD_MASK))
            request->in_body |= wire_part_in_place(&reader.parts, (enum wire_part)i);
    }
    return true;
}

bool wire_safetensors_read(const struct wire_input *input,
                           struct wire_request *ret_request,
                           struct wire_problem *ret_problem) {
    struct safetensors_header header = {0};
    struct wire_request request = {0};
    const char *data;
    bool read = parse_header(input, &header, &data, ret_problem) &&
                read_body(input, &header, data, &request, ret_problem);
    safetensors_header_deinit(&header);
    if (read)
        *ret_request = request;
    return read;
}
