/* SPDX-License-Identifier: Apache-2.0 */
/* ranges.h: what says how attention weights are reduced: spans, top_k, top_in and
 * targets. Each function returns false with the problem of the source set. */
#pragma once

#include "wire/fields/options.h"

/* Checks that each option comes with its word of need, and each word with its options:
 * Missing key, Outputs disagree. */
bool wire_reduce_check_need(const struct wire_decoder *decoder);

/* These are read once the lengths of the sequences are set: Out of range. */
wire_field_reader wire_read_spans;
wire_field_reader wire_read_top_in;
wire_field_reader wire_read_targets; /* one of 0, 0 is none */

/* Checks top_k, once all that it is compared with is set: Out of range. */
bool wire_reduce_check_top(const attn_request *batch, struct wire_problem *ret_problem);
