/* SPDX-License-Identifier: Apache-2.0 */
/* readers.h: the functions that read the fields of a request, in files by what they read.
 * Each returns false with the problem of the source set. */
#pragma once

#include "wire/fields/decoder.h"

typedef bool wire_field_reader(struct wire_decoder *decoder,
                               const struct wire_field *field,
                               const struct wire_value *value);

/* Returns where a number of a row of the table goes. */
static inline void *wire_field_target(struct wire_decoder *decoder,
                                      const struct wire_field *field) {
    return (char *)decoder + field->to;
}

/* --- options.c: words and single numbers --- */

wire_field_reader wire_read_bool;    /* to a bool */
wire_field_reader wire_read_integer; /* to a size_t of field->min..max */
wire_field_reader wire_read_number;  /* to a double, finite in float32 */
wire_field_reader wire_read_need;
wire_field_reader wire_read_need_weights;
wire_field_reader wire_read_softcap;
wire_field_reader wire_read_timeout_ms; /* a number above 0, at most a day */
wire_field_reader wire_read_timeout;    /* microseconds, which become ns; 0: none */

/* Reads the name of a model or layer, which may be an integer: copies it to `word` where
 * it has to be decoded. Wrong type, Malformed JSON. */
bool wire_read_name(const struct wire_source *source, const struct wire_value *value,
                    char word[WIRE_WORD_MAX + 1], struct wire_span *ret_name);

/* --- rows.c: integers for each row --- */

wire_field_reader wire_read_valid_lens;
wire_field_reader wire_read_positions; /* of queries or keys */
wire_field_reader wire_read_query_rows;

/* --- floats.c --- */

wire_field_reader wire_read_head_numbers; /* to a struct wire_head_list */
wire_field_reader wire_read_head_mask;
wire_field_reader wire_read_bias;

/* --- selection.c: the heads and queries whose attention weights a reply has --- */

wire_field_reader wire_read_selection; /* of heads or queries */

/* Checks that the weights to select from are requested: Nothing to select from. */
bool wire_selection_check(const struct wire_decoder *decoder);

/* --- ranges.c: how attention weights are reduced, once the lengths are set --- */

wire_field_reader wire_read_spans;
wire_field_reader wire_read_top_in;
wire_field_reader wire_read_targets; /* one of 0, 0 is none */

/* Checks that each option comes with its word of need, and each word with its options:
 * Missing key, Outputs disagree. */
bool wire_reduce_check_need(const struct wire_decoder *decoder);

/* Checks top_k, once all that it is compared with is set: Out of range. */
bool wire_reduce_check_top(const struct wire_decoder *decoder);
