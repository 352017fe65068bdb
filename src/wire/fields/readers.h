/* SPDX-License-Identifier: Apache-2.0 */
/* readers.h: what wire_decode() reads fields and checks them with, by the files that have
 * it. Each function that returns a bool returns false with the problem of the source
 * set. */
#pragma once

#include "wire/fields/decoder.h"
#include "wire/json/list.h"

#define WIRE_SHAPED_RANK_MAX 4

typedef bool wire_field_reader(struct wire_decoder *decoder,
                               const struct wire_field *field,
                               const struct wire_value *value);

/* Returns where a number of a row of the table goes. */
static inline void *wire_field_target(struct wire_decoder *decoder,
                                      const struct wire_field *field) {
    return (char *)decoder + field->to;
}

/* --- reserve.c --- */

/* Reserves `extra` bytes and the most that reading all values needs, and a model where
 * the request makes one. Allocates nothing. Notes whether values are used in the body. */
bool wire_fields_reserve(struct wire_decoder *decoder, size_t extra);

/* --- options.c: words and single numbers --- */

wire_field_reader wire_read_bool;    /* to a bool */
wire_field_reader wire_read_integer; /* to a size_t of field->min..max */
wire_field_reader wire_read_number;  /* to a double, finite in float32 */
wire_field_reader wire_read_need;
wire_field_reader wire_read_need_weights;
wire_field_reader wire_read_softcap;
wire_field_reader wire_read_timeout_ms; /* a number above 0, at most a day */
wire_field_reader wire_read_timeout;    /* microseconds, which become ns; 0: none */

/* Sets what the results are that the request needs. Where need_weights was set already,
 * it stays. */
void wire_need_apply(struct wire_decoder *decoder);

/* Reads the true, false or "mean" at `span`: Wrong type, Malformed JSON, Out of memory.
 * *ret_need is untouched when the span is empty. */
bool wire_need_weights_read(const struct wire_cursor *cursor,
                            const struct wire_span *span, attn_need_weights *ret_need);

/* Reads the name of a model or layer, which may be an integer: copies it to `word` where
 * it has to be decoded. Wrong type, Malformed JSON. */
bool wire_read_name(const struct wire_source *source, const struct wire_value *value,
                    char word[WIRE_WORD_MAX + 1], struct wire_span *ret_name);

/* --- rows.c: integers for each row --- */

wire_field_reader wire_read_valid_lens;
wire_field_reader wire_read_prefix_lens;
wire_field_reader wire_read_positions; /* of queries or keys */
wire_field_reader wire_read_query_rows;

/* --- floats.c --- */

/* Reads text that is one list of floats, which may have words. *ret_list is untouched
 * when that fails. */
bool wire_flat_read(const struct wire_source *source, const struct wire_value *value,
                    enum wire_words words, const float **ret_list, size_t *ret_count);

/* Reads the numbers of a value that states its shape, which was checked. Arrays are
 * converted, or used where they are; what is not a finite float32 in them becomes NaN or
 * infinite, see wire_finite_check(). */
bool wire_numbers_read(const struct wire_source *source, const struct wire_value *value,
                       const float **ret_numbers);

/* Numbers with the last of some axes. */
struct wire_shaped {
    const struct wire_value *value;
    size_t rank, shape[WIRE_SHAPED_RANK_MAX];
    const float *numbers;
};

/* Takes the shape that shaped->value states, whose rank was checked. */
static inline void wire_shaped_take(struct wire_shaped *shaped) {
    shaped->rank = shaped->value->rank;
    memcpy(shaped->shape, shaped->value->shape,
           shaped->rank * sizeof *shaped->value->shape);
}

/* Reads the numbers of shaped->value, with 1 to `max` axes: text that may have words, or
 * an array. `shapes` says which axes, for an error: Wrong rank, Wrong dtype, Wrong
 * type. */
bool wire_shaped_read(const struct wire_source *source, enum wire_words words, size_t max,
                      const char *shapes, struct wire_shaped *shaped);

wire_field_reader wire_read_head_numbers; /* to a struct wire_head_list */
wire_field_reader wire_read_head_mask;

/* --- selection.c: the heads and queries whose attention weights a reply has --- */

wire_field_reader wire_read_selection; /* of heads or queries */

/* Checks that the weights to select from are requested: Nothing to select from. */
bool wire_selection_check(const struct wire_decoder *decoder);

/* --- ranges.c: how attention weights are reduced, once the lengths are set --- */

wire_field_reader wire_read_spans;
wire_field_reader wire_read_top_in;
wire_field_reader wire_read_targets; /* one of 0, 0 is none */
wire_field_reader wire_read_token_ids;
wire_field_reader wire_read_row_weights;

/* Checks that each option comes with its word of need, and each word with its options:
 * Missing key, Outputs disagree. */
bool wire_reduce_check_need(const struct wire_decoder *decoder);

/* Checks top_k, once all that it is compared with is set: Out of range. */
bool wire_reduce_check_top(const struct wire_decoder *decoder);

/* --- tensors.c: queries, keys and values --- */

/* Refuses lengths that no tensor needs, so that they are not ignored silently: Missing
 * key, Wrong rank. They are read with their tensors. */
wire_field_reader wire_check_lens;

/* Reads a tensor, which must have from `min` to `max` axes (WIRE_LEVELS_...) besides that
 * of heads. Reads nothing when the request does not have it. Where the request states
 * shapes, rows are not read yet. */
bool wire_tensor_read_field(const struct wire_source *source, enum wire_field_id id,
                            size_t min, size_t max, struct wire_tensor *ret_tensor);

/* Reads the rows that wire_tensor_read_field() has left. */
bool wire_tensor_rows_read(struct wire_decoder *decoder);

/* --- tensor_check.c --- */

/* Reads queries, keys and values for a model, and checks each against it and those before
 * it. Keys and values must have a batch axis exactly when queries have one. A tensor that
 * is left out is replaced by the one before it: Shape mismatch, Too many tokens, Missing
 * key. Then reads their rows, and sets them in the request. */
bool wire_tensors_read(struct wire_decoder *decoder);

/* Checks that keys and values have as many sequences as queries, and values as many rows
 * as keys: Shape mismatch. */
bool wire_tensors_check_lens(const struct wire_decoder *decoder);

/* Sets the three tensors of the request. */
void wire_request_set_tensors(struct wire_decoder *decoder);

/* Checks that all numbers that can reach the results of a request are finite. The mask
 * hides rows of keys and values that no query of their sequence attends to, and queries
 * without a valid key, which attend to all values alike; their numbers may be anything.
 * Where key positions do not ascend, only valid_lens hide rows: Out of range. */
bool wire_finite_check(const struct wire_decoder *decoder);

/* --- given.c: requests without a model --- */

/* Reads queries, keys and values: Missing key, Shape mismatch. */
bool wire_given_read(struct wire_decoder *decoder);

/* Makes the model of a request, in the arena, and sets the model, the tensors and what
 * the reply has: Shape mismatch, Missing key, Request too large, Out of memory. */
bool wire_given_apply(struct wire_decoder *decoder);

/* Refuses a causal mask where there are fewer queries than keys without positions: the
 * last query would see the first keys only. Missing key. */
bool wire_given_check_causal(const struct wire_decoder *decoder);

/* --- bias.c --- */

wire_field_reader wire_read_bias; /* once the lengths are set */

/* --- stored.c: what a request leaves out, because a capture that is kept has it --- */

/* Finds the layer of that name, of `size` bytes; the only one when `name` is NULL. Fails
 * with Unknown layer. */
bool wire_stored_find(const struct capture_layers *capture, const char *name, size_t size,
                      const struct capture_layer **ret_layer,
                      struct wire_problem *ret_problem);

/* Sets the options of given->stored. Those of the request are read afterwards. */
void wire_stored_set_options(struct wire_decoder *decoder);

/* Reads queries, or takes stored ones as query_rows say; keys and values are stored.
 * Reserves what it allocates, and the marks of selections: Out of range, Missing key,
 * Unknown key, Out of memory. */
bool wire_stored_read(struct wire_decoder *decoder);

/* Sets keys, values and positions of a request whose model and tensors are set. Those
 * positions that are sent are read afterwards. */
bool wire_stored_set_rows(struct wire_decoder *decoder);

/* Sets the stored bias of a request that has none: Missing key, Shape mismatch. */
bool wire_stored_set_bias(struct wire_decoder *decoder);
