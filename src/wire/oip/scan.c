/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c: finds the inputs, outputs and parameters of a request of the Open Inference
 * Protocol. It also reads requests for the index. */
#include "wire/oip/request.h"

#include "base/error.h"
#include "wire/reply.h"

#include <stdlib.h>

#define DIGITS_MAX         18    /* of a size */
#define ID_BYTES_MAX       65536 /* jansson reads it at once, so it is short */
#define OUTPUT_NAMES_BYTES (20 * NUM_RESULTS) /* that an error lists */

enum { ID, PARAMETERS, INPUTS, OUTPUTS, NUM_MEMBERS };

static const struct wire_keys request_keys = {
    .owner = "a request",
    .count = NUM_MEMBERS,
    .where = " (tensors are inputs, options are parameters)",
    .names = {[ID] = "id",
              [PARAMETERS] = "parameters",
              [INPUTS] = "inputs",
              [OUTPUTS] = "outputs"},
};

static const struct wire_keys output_keys = {
    .owner = "an output", .count = 2, .names = {"name", "parameters"}};

static const struct wire_keys output_parameter_keys = {
    .owner = "an output's parameters",
    .where = "",
    .count = 2,
    .names = {"binary_data", "content_type"},
};

static const struct wire_keys index_keys = {
    .owner = "a request for the index", .count = 1, .names = {"ready"}};

static const struct wire_keys change_keys = {
    .owner = "a request to load or unload a model", .count = 1, .names = {"parameters"}};

static const struct wire_keys change_parameter_keys = {
    .owner = "parameters", .count = 1, .names = {"unload_dependents"}};

/* --- parameters --- */

/* Finds parameters. Lists of indices are strings there. */
static bool find_parameters(const struct wire_cursor *cursor,
                            const struct wire_span *span, struct wire_oip_scan *scan) {
    struct wire_source *source = &scan->source;
    struct wire_keys keys = {.owner = "a request's parameters",
                             .where = " (tensors are inputs)"};
    struct wire_span members[WIRE_NUM_FIELDS];

    wire_fields_set_keys(WIRE_OIP_PARAMETER, WIRE_OPTION | WIRE_INTEGERS, &keys);
    if (!wire_oip_parameters_scan(cursor, span, 2, &keys, WIRE_FIELD_CODEC, members))
        return false;
    wire_fields_take(members, source);
    source->values[WIRE_FIELD_WEIGHTS_HEADS].bare = true;
    source->values[WIRE_FIELD_WEIGHTS_QUERIES].bare = true;
    return wire_bool_read(cursor, &members[WIRE_FIELD_BINARY_OUTPUT],
                          "binary_data_output", &scan->binary_output);
}

/* --- lists of objects --- */

/* Reads a list of objects with `read`. */
static bool read_list_of_objects(const struct wire_cursor *cursor,
                                 const struct wire_span *span, const char *field,
                                 wire_element_reader *read, void *context) {
    struct wire_place place = {.field = field};
    if (span->start == NULL)
        return true;

    struct wire_cursor there = wire_cursor_at(cursor, span);
    if (*span->start != '[')
        return wire_refuse_value_type(&there, &place, "array");
    there.at++;
    size_t count;
    return wire_cursor_next(&there) == ']' ||
           wire_elements_read(&there, &place, SIZE_MAX, read, context, &count);
}

/* --- outputs --- */

/* Reads which output this is. */
static bool read_output_name(const struct wire_cursor *cursor,
                             const struct wire_span *span, size_t index,
                             enum result_id *ret_which) {
    char word[WIRE_WORD_MAX + 1] = "", known[OUTPUT_NAMES_BYTES];
    const char *names[NUM_RESULTS];
    size_t count = 0;
    if (span->start == NULL)
        return wire_problem_set(cursor->problem, WIRE_E_MISSING_KEY, "name",
                                "outputs[%zu] has no name; send it", index);
    if (!wire_word_read(cursor, span, "name", word))
        return false;

    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        *ret_which = id;
        if ((result_table[id].kinds & RESULT_OIP) == 0)
            continue;
        if (strcmp(word, result_table[id].name) == 0)
            return true;
        names[count++] = result_table[id].name;
    }
    wire_names_print(known, sizeof known, names, count, "or");
    return wire_problem_set(cursor->problem, WIRE_E_UNKNOWN_OUTPUT, "outputs",
                            "outputs[%zu] has the name '%.64s'; use %s", index, word,
                            known);
}

static bool read_output_element(struct wire_cursor *cursor, struct wire_place *place,
                                void *context) {
    struct wire_oip_scan *scan = context;
    size_t index = place->index[0];
    struct wire_oip_reply *reply = &scan->reply;
    struct wire_span members[2], options[2];
    enum result_id which = RESULT_OUTPUTS;

    if (!wire_object_scan(cursor, place, 3, &output_keys, members) ||
        !read_output_name(cursor, &members[0], index, &which))
        return false;
    for (size_t i = 0; i < reply->num_outputs; i++) {
        if (reply->outputs[i].which == which)
            return wire_problem_set(
                cursor->problem, WIRE_E_DUPLICATE_OUTPUT, "outputs",
                "outputs[%zu] has the name '%s', which appears twice; "
                "send each output once",
                index, result_table[which].name);
    }

    if (!wire_oip_parameters_scan(cursor, &members[1], 4, &output_parameter_keys, 1,
                                  options))
        return false;

    size_t i = reply->num_outputs++; /* fits, as they differ */
    reply->outputs[i].which = which;
    reply->outputs[i].binary = scan->binary_output;
    return wire_bool_read(cursor, &options[0], "binary_data", &reply->outputs[i].binary);
}

/* --- the request --- */

/* Finds the id, which must be a string. Its text is not checked. */
static bool find_id(const struct wire_cursor *cursor, const struct wire_span *span,
                    struct wire_oip_reply *reply) {
    struct wire_place place = {.field = "id"};
    if (span->start == NULL)
        return true;

    struct wire_cursor there = wire_cursor_at(cursor, span);
    if (*span->start != '"')
        return wire_refuse_value_type(&there, &place, "string");
    if (span->end - span->start > ID_BYTES_MAX)
        return wire_problem_set(cursor->problem, WIRE_E_OUT_OF_RANGE, place.field,
                                "id has %zu bytes; send at most %d, quotes included",
                                (size_t)(span->end - span->start), ID_BYTES_MAX);
    reply->id = span->start;
    reply->id_size = (size_t)(span->end - span->start);
    return true;
}

bool wire_oip_scan(const struct wire_input *input, struct wire_oip_scan *ret_scan,
                   struct wire_problem *ret_problem) {
    bool split = input->json_size != WIRE_NO_SIZE;
    const char *body = input->body;
    const char *end = body + (split ? input->json_size : input->size);
    struct wire_cursor cursor = {body, body, end, ret_problem};
    struct wire_span members[NUM_MEMBERS];

    struct wire_oip_binary *binary = &ret_scan->binary;
    struct wire_oip_reply *reply = &ret_scan->reply;

    *ret_scan = (struct wire_oip_scan){.source = {.input = input,
                                                  .problem = ret_problem,
                                                  .text = body,
                                                  .requests = WIRE_OIP_INPUT,
                                                  .has_arrays = true}};
    if (split)
        *binary = (struct wire_oip_binary){(const unsigned char *)end,
                                           input->size - input->json_size};
    if (!wire_body_open(&cursor, "inputs") ||
        !wire_object_scan(&cursor, NULL, 1, &request_keys, members) ||
        !wire_body_close(&cursor) || !find_id(&cursor, &members[ID], reply) ||
        !find_parameters(&cursor, &members[PARAMETERS], ret_scan) ||
        !read_list_of_objects(&cursor, &members[INPUTS], "inputs", wire_oip_input_scan,
                              ret_scan) ||
        !read_list_of_objects(&cursor, &members[OUTPUTS], "outputs", read_output_element,
                              ret_scan))
        return false;
    if (reply->num_outputs == 0) { /* the outputs alone */
        reply->num_outputs = 1;
        reply->outputs[0].binary = ret_scan->binary_output;
    }
    return binary->size == 0 ||
           wire_problem_set(
               ret_problem, WIRE_E_BINARY_DATA, NULL,
               "the body has %zu byte%s after the binary data of the last input; send no "
               "more than the sum of binary_data_size",
               binary->size, plural_of(binary->size));
}

bool wire_oip_json_size(const char *value, size_t body_size, size_t *ret_json_size,
                        struct wire_problem *ret_problem) {
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || value[digits] != '\0')
        return wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, WIRE_OIP_SIZE_HEADER,
                                WIRE_OIP_SIZE_HEADER
                                " is '%.40s'; send the size of the JSON in bytes",
                                value);

    size_t size = digits <= DIGITS_MAX ? (size_t)strtoull(value, NULL, 10) : SIZE_MAX;
    if (size > body_size)
        return wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, WIRE_OIP_SIZE_HEADER,
                                WIRE_OIP_SIZE_HEADER
                                " is %.40s, but the body has %zu byte%s; "
                                "send the size of the JSON in bytes",
                                value, body_size, plural_of(body_size));
    if (size == 0)
        return wire_problem_set(ret_problem, WIRE_E_BINARY_DATA, WIRE_OIP_SIZE_HEADER,
                                WIRE_OIP_SIZE_HEADER
                                " is 0, but binary data needs JSON before it; "
                                "send JSON that describes the inputs");
    *ret_json_size = size;
    return true;
}

/* Finds the one member that a body may have, which may be empty. */
static bool find_only_member(struct wire_cursor *cursor, const struct wire_keys *keys,
                             struct wire_span *ret_value) {
    *ret_value = (struct wire_span){0};
    return cursor->at == cursor->end ||
           (wire_body_open(cursor, keys->names[0]) &&
            wire_object_scan(cursor, NULL, 1, keys, ret_value) &&
            wire_body_close(cursor));
}

bool wire_oip_read_index(const char *text, size_t size, bool *ret_ready_only,
                         struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {text, text, text + size, ret_problem};
    struct wire_span ready;

    *ret_ready_only = false;
    return find_only_member(&cursor, &index_keys, &ready) &&
           wire_bool_read(&cursor, &ready, "ready", ret_ready_only);
}

bool wire_oip_read_change(const char *text, size_t size,
                          struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {text, text, text + size, ret_problem};
    struct wire_place place = {.field = "parameters"};
    struct wire_span parameters, dependents;
    bool ignored;

    if (!find_only_member(&cursor, &change_keys, &parameters))
        return false;
    if (parameters.start == NULL)
        return true;
    struct wire_cursor there = wire_cursor_at(&cursor, &parameters);
    return wire_object_scan(&there, &place, 2, &change_parameter_keys, &dependents) &&
           wire_bool_read(&cursor, &dependents, "unload_dependents", &ignored);
}
