/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: wire_field.read of words and single numbers: JSON texts, or strings that
 * hold the same. */
#pragma once

#include "wire/fields/decoder.h"

typedef bool wire_field_reader(struct wire_decoder *decoder,
                               const struct wire_field *field,
                               const struct wire_value *value);

wire_field_reader wire_read_bool;         /* to a bool */
wire_field_reader wire_read_integer;      /* to a size_t of field->min..max */
wire_field_reader wire_read_number;       /* to a double, finite in float32 */
wire_field_reader wire_read_head_numbers; /* to a struct wire_head_list */
wire_field_reader wire_read_need;
wire_field_reader wire_read_need_weights;
wire_field_reader wire_read_softcap;
wire_field_reader wire_read_timeout_ms; /* a number above 0, at most a day */
wire_field_reader wire_read_timeout;    /* microseconds, which become ns; 0: none */

/* Reads the name of a model or layer, which may be an integer: copies it to `word` where
 * it has to be decoded. Wrong type, Malformed JSON. */
bool wire_read_name(const struct wire_source *source, const struct wire_value *value,
                    char word[WIRE_WORD_MAX + 1], struct wire_span *ret_name);
