/* SPDX-License-Identifier: Apache-2.0 */
/* source.h: a request whose fields were found, and not read: what every format makes of a
 * body. Values are texts of JSON or arrays. */
#pragma once

#include "wire/fields/fields.h"
#include "wire/protocol.h"

/* The value of a field. Everything is borrowed from the body or its header. */
struct wire_value {
    const char *name;      /* of the field */
    struct wire_span text; /* start is NULL: bytes have the numbers */
    bool bare;             /* the text has indices and commas, and no brackets */
    /* The shape that the request states, and the type of the numbers; a text without a
     * shape has the one of its lists. */
    const size_t *shape; /* [rank], of `count` numbers; or NULL */
    size_t rank, count;
    const struct dtype *dtype;
    const unsigned char *bytes; /* at any alignment; NULL: the value is a text */
};

/* A request. Everything is borrowed. */
struct wire_source {
    const struct wire_input *input;
    struct wire_problem *problem;
    const char *text; /* for line and column; NULL where options are texts of their own */
    unsigned requests; /* one of WIRE_TO_...; WIRE_OIP_... */
    bool has_arrays;   /* some values may be arrays, of numbers that were not checked */
    struct wire_value values[WIRE_NUM_FIELDS]; /* by id */
    uint64_t sent;                             /* a bit for each of these that is set */
};

_Static_assert(WIRE_NUM_FIELDS <= 64, "bits of wire_source.sent");

/* Notes that a field is sent, and returns its value, to be set. */
static inline struct wire_value *wire_source_set(struct wire_source *source,
                                                 const struct wire_field *field) {
    source->sent |= UINT64_C(1) << field->id;
    source->values[field->id].name = field->name;
    return &source->values[field->id];
}

/* Returns the first field whose bit is left, and takes the bit away; NULL: there is
 * none. */
static inline const struct wire_field *wire_field_next(uint64_t *left) {
    const struct wire_field *field =
        *left != 0 ? &wire_fields[__builtin_ctzll(*left)] : NULL;
    *left &= *left - 1;
    return field;
}

static inline bool wire_value_is_sent(const struct wire_value *value) {
    return value->text.start != NULL || value->bytes != NULL;
}

static inline bool wire_is_sent(const struct wire_source *source, enum wire_field_id id) {
    return wire_value_is_sent(&source->values[id]);
}

/* Returns which requests those of /v1 are: one of WIRE_TO_.... */
static inline unsigned wire_input_requests(const struct wire_input *input) {
    if (input->capture != NULL)
        return WIRE_TO_STORED;
    return input->models != NULL ? WIRE_TO_MODEL : WIRE_TO_GIVEN;
}

/* Whether options are strings of their own: safetensors. */
static inline bool wire_has_strings(const struct wire_source *source) {
    return source->text == NULL;
}

/* Whether the request is without a model. */
static inline bool wire_is_given(const struct wire_source *source) {
    return (source->requests & (WIRE_TO_GIVEN | WIRE_TO_STORED)) != 0;
}

/* Whether heads are an axis of queries, keys and values. */
static inline bool wire_has_heads_axis(const struct wire_source *source) {
    return wire_is_given(source) && !wire_is_sent(source, WIRE_FIELD_NUM_HEADS);
}

/* Returns a cursor at the text of a value. */
static inline struct wire_cursor wire_value_cursor(const struct wire_source *source,
                                                   const struct wire_value *value) {
    return (struct wire_cursor){source->text, value->text.start, value->text.end,
                                source->problem};
}

/* Returns how many axes a value has; in a text, along the first elements. */
size_t wire_value_rank(const struct wire_value *value);

/* Whether floats are used where they are: float32 at a multiple of 4 bytes, and keys of a
 * request without a model, see attn_request.encoded_keys. */
bool wire_value_is_in_place(const struct wire_source *source,
                            const struct wire_value *value);

/* Refuses the shape that a value states, whose rank should be `min`..`max`; `expected` is
 * what it should be, with as many axes, where the rank is right. `wanted` ends "send it
 * with shape". */
bool wire_refuse_shape(const struct wire_source *source, const struct wire_value *value,
                       size_t min, size_t max, const size_t *expected,
                       const char *wanted);

/* Checks the rank of a value that states its shape: Wrong rank. */
bool wire_rank_check(const struct wire_source *source, const struct wire_value *value,
                     size_t min, size_t max, const char *wanted);

/* Checks that an array has numbers, and their type: Wrong dtype, Empty tensor. */
bool wire_array_check(const struct wire_source *source, const struct wire_value *value,
                      bool integers);

/* Returns whether integers may be stored as that type: I64, I32, F64 or F32, since many
 * tools only have floats. */
bool wire_integers_allow(const char *dtype);

/* Refuses text that does not have as many numbers as its shape; `got` is what its data
 * "has" or "is": Shape mismatch. */
bool wire_refuse_data(const struct wire_source *source, const struct wire_value *value,
                      const char *got);

/* Finds whether text with a shape is flat, or nested like the shape: Wrong rank. */
bool wire_data_is_flat(const struct wire_source *source, const struct wire_value *value,
                       bool *ret_flat);
