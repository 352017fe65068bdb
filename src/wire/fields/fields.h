/* SPDX-License-Identifier: Apache-2.0 */
/* fields.h: the table of the fields that a request may have. Each format finds the values
 * of fields (source.h), and decode.h reads them in the same way for all. */
#pragma once

#include "wire/json/object.h"

struct wire_decoder;
struct wire_source;
struct wire_value;

/* The rows of the table. */
enum wire_field_id {
#define WIRE_FIELD(name, ...) WIRE_FIELD_##name,
#include "wire/fields/fields.inc"
#undef WIRE_FIELD
    WIRE_NUM_FIELDS
};

/* Which requests have a field; a sum of these. */
enum {
    WIRE_TO_MODEL = 1,      /* POST /v1/attention */
    WIRE_TO_GIVEN = 2,      /* POST /v1/attention/dot-product: without a model */
    WIRE_TO_STORED = 4,     /* without a model, for a layer of a capture */
    WIRE_OIP_INPUT = 8,     /* of the Open Inference Protocol */
    WIRE_OIP_PARAMETER = 16 /* of the same requests */
};

/* The contents of a field; a sum of these selects rows of the table. */
enum wire_field_kind {
    WIRE_OPTION = 1, /* words or one number */
    WIRE_TENSOR = 2, /* queries, keys or values */
    WIRE_FLOATS = 4,
    WIRE_INTEGERS = 8,
    WIRE_LENS = 16, /* the lengths of sequences, integers that JSON shows by its lists */
    WIRE_MASK = 32  /* floats, or booleans */
};
#define WIRE_LISTS (WIRE_TENSOR | WIRE_FLOATS | WIRE_INTEGERS | WIRE_MASK)

/* When a field is read: after those of the phases before. */
enum wire_phase {
    WIRE_PHASE_NONE, /* by itself */
    WIRE_PHASE_OPTIONS,
    WIRE_PHASE_LENS,
    WIRE_PHASE_REDUCTIONS, /* from here on, queries, keys and values are set */
    WIRE_PHASE_TARGETS,    /* what reduces besides the largest weights */
    WIRE_PHASE_SELECTIONS,
    WIRE_PHASE_MASKS,
    WIRE_PHASE_BIAS
};

struct wire_field {
    enum wire_field_id id;
    const char *name;
    unsigned requests;
    enum wire_field_kind kind;
    enum wire_phase phase;
    /* Reads a value that was sent, and checks it. Returns false with the problem set. */
    bool (*read)(struct wire_decoder *decoder, const struct wire_field *field,
                 const struct wire_value *value);
    size_t to; /* where a number goes: its offset in struct wire_decoder */
    /* The integers that it may be, and the reason for that range. */
    size_t min, max;
    const char *limit;
};

extern const struct wire_field wire_fields[WIRE_NUM_FIELDS];

/* Returns the field of that name among those of `requests` and `kinds`, or NULL. */
const struct wire_field *wire_field_find(const char *name, unsigned requests,
                                         unsigned kinds);

/* Writes the names of these fields: "a, b and c". */
void wire_fields_list(unsigned requests, unsigned kinds, char *ret_text, size_t size);

/* Sets the keys of an object to the names of these fields, by their index in the
 * table. */
void wire_fields_set_keys(unsigned requests, unsigned kinds, struct wire_keys *ret_keys);

/* Sets the values of a request to the members of an object with such keys. */
void wire_fields_take(const struct wire_span members[WIRE_NUM_FIELDS],
                      struct wire_source *source);
