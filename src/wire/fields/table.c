/* SPDX-License-Identifier: Apache-2.0 */
/* table.c: the fields of a request, and how they are read. */
#include "wire/fields/fields.h"

#include "wire/fields/readers.h"

#include <stddef.h>

/* Which requests have a field. */
#define MODEL  WIRE_TO_MODEL
#define GIVEN  (WIRE_TO_GIVEN | WIRE_TO_STORED)
#define SENT   (WIRE_TO_MODEL | WIRE_TO_GIVEN)
#define ALL    (MODEL | GIVEN)
#define INPUT  WIRE_OIP_INPUT
#define PARAM  WIRE_OIP_PARAMETER
#define EITHER (INPUT | PARAM)

#define OPTIONS    WIRE_PHASE_OPTIONS
#define LENS       WIRE_PHASE_LENS
#define REDUCTIONS WIRE_PHASE_REDUCTIONS
#define TARGETS    WIRE_PHASE_TARGETS
#define SELECTIONS WIRE_PHASE_SELECTIONS
#define MASKS      WIRE_PHASE_MASKS

#define DAY_US 86400000000

#define TO(member) offsetof(struct wire_decoder, member)

const struct wire_field wire_fields[WIRE_NUM_FIELDS] = {
#define WIRE_FIELD(name, ...) {.id = WIRE_FIELD_##name, __VA_ARGS__},
#include "wire/fields/fields.inc"
#undef WIRE_FIELD
};

/* Whether a field is among those of `requests` and `kinds`. */
static bool is_among(const struct wire_field *field, unsigned requests, unsigned kinds) {
    return (field->requests & requests) != 0 && (field->kind & kinds) != 0;
}

const struct wire_field *wire_field_find(const char *name, unsigned requests,
                                         unsigned kinds) {
    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++) {
        if (is_among(&wire_fields[i], requests, kinds) &&
            strcmp(wire_fields[i].name, name) == 0)
            return &wire_fields[i];
    }
    return NULL;
}

void wire_fields_list(unsigned requests, unsigned kinds, char *ret_text, size_t size) {
    const char *names[WIRE_NUM_FIELDS];
    size_t count = 0;

    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++) {
        if (is_among(&wire_fields[i], requests, kinds))
            names[count++] = wire_fields[i].name;
    }
    wire_names_print(ret_text, size, names, count, "and");
}

void wire_fields_set_keys(unsigned requests, unsigned kinds, struct wire_keys *ret_keys) {
    ret_keys->count = WIRE_NUM_FIELDS;
    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++)
        ret_keys->names[i] =
            is_among(&wire_fields[i], requests, kinds) ? wire_fields[i].name : NULL;
}

void wire_fields_take(const struct wire_span members[WIRE_NUM_FIELDS],
                      struct wire_source *source) {
    for (size_t i = 0; i < WIRE_NUM_FIELDS; i++) {
        if (members[i].start != NULL)
            wire_source_set(source, &wire_fields[i])->text = members[i];
    }
}
