/* SPDX-License-Identifier: Apache-2.0 */
/* input.c: finds the name, datatype, shape and data of one input of a request. */
#include "wire/oip/request.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/size.h"
#include "wire/json/object.h"
#include "wire/names.h"

#include <stdio.h>

#define INPUT_DEPTH      3  /* of an input's members: request, inputs, input */
#define NAME_SHOWN_MAX   64 /* bytes */
#define FIELD_BYTES      32 /* of the longest name and ".shape" */
#define DIGITS_SHOWN_MAX 24
#define FLOAT_TYPES      "FP32, FP16, FP64 or (as binary data) BF16"
#define INTEGER_TYPES    "INT32, INT64, FP32 or FP64"
#define NAMES_BYTES      256 /* of the names that an error lists */

/* How elements are stored in binary data. */
struct oip_type {
    const char *name;
    const char *dtype;   /* its name in base/dtype.h */
    bool is_binary_only; /* never in JSON */
};

static const struct oip_type types[] = {
    {"FP32", "F32", false},  {"FP16", "F16", false},  {"FP64", "F64", false},
    {"BF16", "BF16", true},  {"INT32", "I32", false}, {"INT64", "I64", false},
    {"BOOL", "BOOL", false},
};

enum { NAME, SHAPE, DATATYPE, PARAMETERS, DATA, NUM_MEMBERS };

static const struct wire_keys input_keys = {
    .owner = "an input",
    .count = NUM_MEMBERS,
    .names = {[NAME] = "name",
              [SHAPE] = "shape",
              [DATATYPE] = "datatype",
              [PARAMETERS] = "parameters",
              [DATA] = "data"},
};

enum { BINARY_SIZE, CODEC, NUM_PARAMETERS };

static const struct wire_keys input_parameter_keys = {
    .owner = "an input's parameters",
    .where = "",
    .count = NUM_PARAMETERS,
    .names = {[BINARY_SIZE] = "binary_data_size", [CODEC] = "content_type"},
};

static bool refuse_missing(struct wire_problem *problem, const char *whose,
                           const char *key) {
    return wire_problem_set(problem, WIRE_E_MISSING_KEY, key, "%s has no %s; send it",
                            whose, key);
}

/* Finds which field the input is. */
static bool find_input(const struct wire_cursor *cursor, const struct wire_span *span,
                       size_t index, struct wire_source *source,
                       const struct wire_field **ret_field) {
    char whose[48], word[WIRE_WORD_MAX + 1], known[NAMES_BYTES];

    snprintf(whose, sizeof whose, "inputs[%zu]", index);
    if (span->start == NULL)
        return refuse_missing(cursor->problem, whose, "name");
    if (!wire_word_read(cursor, span, "name", word))
        return false;

    const struct wire_field *field = wire_field_find(word, WIRE_OIP_INPUT, WIRE_LISTS);
    const char *remedy = wire_name_remedy(word, false);
    if (field == NULL) {
        wire_fields_list(WIRE_OIP_INPUT, WIRE_LISTS, known, sizeof known);
        return wire_problem_set(
            cursor->problem, WIRE_E_UNKNOWN_KEY, "inputs",
            remedy != NULL ? "%s has the name '%.*s'; %s (options are parameters)"
                           : "%s has the name '%.*s'; use one of %s",
            whose, NAME_SHOWN_MAX, word, remedy != NULL ? remedy : known);
    }
    if (source->values[field->id].dtype != NULL)
        return wire_problem_set(cursor->problem, WIRE_E_DUPLICATE_INPUT, field->name,
                                "%s has the name '%s', which appears twice; "
                                "send each input once",
                                whose, field->name);
    *ret_field = field;
    return true;
}

/* Whether the numbers of a field may be stored as that type. */
static bool may_have_type(enum wire_field_kind kind, const struct oip_type *type) {
    if (kind == WIRE_INTEGERS)
        return wire_integers_allow(type->dtype);
    return dtype_find(type->dtype)->to_float != NULL ||
           (kind == WIRE_MASK && strcmp(type->dtype, "BOOL") == 0);
}

/* Returns what to send instead of booleans. */
static const char *boolean_remedy(enum wire_field_kind kind, const char *name) {
    if (kind == WIRE_INTEGERS)
        return ": lengths; of an attention_mask they are mask.sum(-1)";
    return strcmp(name, "bias") == 0 ? ", or booleans as attn_mask" : "";
}

static bool read_datatype(const struct wire_cursor *cursor, const struct wire_span *span,
                          enum wire_field_kind kind, struct wire_value *input,
                          const struct oip_type **ret_type) {
    char word[WIRE_WORD_MAX + 1];
    if (span->start == NULL)
        return refuse_missing(cursor->problem, input->name, "datatype");
    if (!wire_word_read(cursor, span, "datatype", word))
        return false;

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].name, word) == 0 && may_have_type(kind, &types[i])) {
            *ret_type = &types[i];
            input->dtype = dtype_find(types[i].dtype);
            return true;
        }
    }
    return wire_problem_set(cursor->problem, WIRE_E_WRONG_DTYPE, input->name,
                            "%s has datatype '%.*s'; send it as %s%s%s", input->name,
                            NAME_SHOWN_MAX, word, kind == WIRE_MASK ? "BOOL, " : "",
                            kind == WIRE_INTEGERS ? INTEGER_TYPES : FLOAT_TYPES,
                            strcmp(word, "UINT16") == 0 ? "; bits of bfloat16 are BF16"
                            : strcmp(word, "BOOL") == 0
                                ? boolean_remedy(kind, input->name)
                                : "");
}

/* Returns how many characters of a number an error shows. */
static int shown_digits(const struct wire_span *text) {
    return text->end - text->start < DIGITS_SHOWN_MAX ? (int)(text->end - text->start)
                                                      : DIGITS_SHOWN_MAX;
}

/* A shape that is being read. */
struct shape_reader {
    struct wire_value *input;
    size_t *shape; /* [WIRE_OIP_RANK_MAX] */
};

/* Reads a size of a shape. */
static bool read_size(struct wire_cursor *cursor, struct wire_place *place,
                      void *context) {
    const struct shape_reader *reader = context;
    struct wire_value *input = reader->input;
    struct wire_span text;
    size_t size;
    if (input->rank == WIRE_OIP_RANK_MAX)
        return wire_problem_set(cursor->problem, WIRE_E_WRONG_RANK, input->name,
                                "%s has a shape of more than %d dimensions; send at most "
                                "%d",
                                input->name, WIRE_OIP_RANK_MAX, WIRE_OIP_RANK_MAX);
    if (!wire_integer_read(cursor, place, 1, false, &size, &text))
        return false;
    if (size == 0 || size == SIZE_MAX)
        return wire_problem_set(
            cursor->problem, size == 0 ? WIRE_E_EMPTY_TENSOR : WIRE_E_OUT_OF_RANGE,
            input->name,
            "%s[%zu] is %.*s; send a size of at least 1 that fits into "
            "memory",
            place->field, input->rank, shown_digits(&text), text.start);
    reader->shape[input->rank++] = size;
    return true;
}

static bool read_input_shape(const struct wire_cursor *cursor,
                             const struct wire_span *span, struct wire_value *input,
                             size_t shape[WIRE_OIP_RANK_MAX]) {
    struct shape_reader reader = {input, shape};
    char field[FIELD_BYTES];
    snprintf(field, sizeof field, "%s.shape", input->name);
    struct wire_place place = {.field = field};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    if (span->start == NULL)
        return refuse_missing(cursor->problem, input->name, "shape");
    if (!wire_list_read(&there, &place, 1, SIZE_MAX, read_size, &reader, &input->rank))
        return false;

    input->shape = shape;
    input->count = 1;
    for (size_t i = 0; i < input->rank; i++) {
        size_t bytes; /* must not overflow either */
        if (!size_mul(input->count, shape[i], &input->count) ||
            !size_mul(input->count, sizeof(double), &bytes))
            return wire_problem_set(
                cursor->problem, WIRE_E_OUT_OF_RANGE, input->name,
                "%s has more elements than fit into memory; send the shape "
                "of the tensor",
                field);
    }
    return true;
}

/* Takes the bytes of the input from the binary data that is left. */
static bool take_binary_data(const struct wire_cursor *cursor,
                             const struct wire_span *span, const struct oip_type *type,
                             struct wire_oip_binary *binary, struct wire_value *input) {
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_place place = {.field = "binary_data_size"};
    struct wire_span text;
    size_t size, needed = input->count * (input->dtype->bits / 8);
    if (!wire_integer_read(&there, &place, 0, false, &size, &text))
        return false;

    if (size != needed)
        return wire_problem_set(
            cursor->problem, WIRE_E_BINARY_DATA, input->name,
            "%s has binary_data_size %.*s, but its shape in %s needs %zu; "
            "correct one of them",
            input->name, shown_digits(&text), text.start, type->name, needed);
    if (binary->at == NULL)
        return wire_problem_set(
            cursor->problem, WIRE_E_BINARY_DATA, input->name,
            "%s has binary_data_size, but nothing states where binary data "
            "begins; send the header " WIRE_OIP_SIZE_HEADER " with "
            "the size of the JSON in bytes",
            input->name);
    if (size > binary->size)
        return wire_problem_set(
            cursor->problem, WIRE_E_BINARY_DATA, input->name,
            "%s needs %zu byte%s of binary data, but the body has only %zu left; "
            "send the data of all inputs in their order",
            input->name, size, plural_of(size), binary->size);

    input->bytes = binary->at;
    binary->at += size;
    binary->size -= size;
    return true;
}

/* Finds the data, which is JSON or binary. */
static bool find_data(const struct wire_cursor *cursor, const struct wire_span *members,
                      const struct wire_span *binary_size, const struct oip_type *type,
                      struct wire_oip_binary *binary, struct wire_value *input) {
    const struct wire_span *data = &members[DATA];
    struct wire_problem *problem = cursor->problem;

    if (data->start == NULL && binary_size->start == NULL)
        return refuse_missing(problem, input->name, "data");
    if (data->start != NULL && binary_size->start != NULL)
        return wire_problem_set(problem, WIRE_E_BINARY_DATA, input->name,
                                "%s has both data and binary_data_size; send one of them",
                                input->name);
    if (binary_size->start != NULL)
        return take_binary_data(cursor, binary_size, type, binary, input);

    if (type->is_binary_only)
        return wire_problem_set(problem, WIRE_E_WRONG_DTYPE, input->name,
                                "%s has datatype %s, which must be binary data; "
                                "send FP32 in JSON",
                                input->name, type->name);
    input->text = *data;
    if (input->count - 1 <= data->commas)
        return true;

    return wire_problem_set(
        problem, WIRE_E_SHAPE_MISMATCH, input->name,
        "%s has a shape of %zu element%s, but its data has at most %zu; "
        "correct one of them",
        input->name, input->count, plural_of(input->count), data->commas + 1);
}

bool wire_oip_parameters_scan(const struct wire_cursor *cursor,
                              const struct wire_span *span, size_t depth,
                              const struct wire_keys *keys, size_t codec,
                              struct wire_span *ret_values) {
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_place place = {.field = "parameters"};
    char word[WIRE_WORD_MAX + 1] = "np";

    memset(ret_values, 0, keys->count * sizeof *ret_values);
    if (span->start != NULL && !wire_object_scan(&there, &place, depth, keys, ret_values))
        return false;
    if (ret_values[codec].start != NULL &&
        !wire_word_read(cursor, &ret_values[codec], "content_type", word))
        return false;
    return strcmp(word, "np") == 0 ||
           wire_problem_set(cursor->problem, WIRE_E_WRONG_DTYPE, "content_type",
                            "content_type is '%.40s', but tensors are arrays of numbers; "
                            "send np, or leave it out",
                            word);
}

bool wire_oip_input_scan(struct wire_cursor *cursor, struct wire_place *place,
                         void *context) {
    struct wire_oip_scan *scan = context;
    struct wire_span members[NUM_MEMBERS], options[NUM_PARAMETERS];
    const struct wire_field *field = wire_fields;
    const struct oip_type *type = types;

    if (!wire_object_scan(cursor, place, INPUT_DEPTH, &input_keys, members) ||
        !find_input(cursor, &members[NAME], place->index[0], &scan->source, &field) ||
        !wire_oip_parameters_scan(cursor, &members[PARAMETERS], INPUT_DEPTH + 1,
                                  &input_parameter_keys, CODEC, options))
        return false;

    struct wire_value *input = &scan->source.values[field->id];
    if (wire_value_is_sent(input)) /* by a parameter */
        return wire_problem_set(cursor->problem, WIRE_E_DUPLICATE_INPUT, field->name,
                                "%s is an input as well as a parameter; send one of them",
                                field->name);
    *wire_source_set(&scan->source, field) = (struct wire_value){.name = field->name};
    return read_input_shape(cursor, &members[SHAPE], input, scan->shapes[field->id]) &&
           read_datatype(cursor, &members[DATATYPE], field->kind, input, &type) &&
           find_data(cursor, members, &options[BINARY_SIZE], type, &scan->binary, input);
}
