/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: wire_field.read of what belongs to the rows of a request: lengths and
 * positions, selected heads and queries, ranges of keys, and what weights are reduced
 * to. */
#pragma once

#include "wire/fields/options.h"

wire_field_reader wire_read_head_mask;
wire_field_reader wire_read_valid_lens;
wire_field_reader wire_read_positions; /* of queries or keys */
wire_field_reader wire_read_selection; /* of heads or queries */
wire_field_reader wire_read_spans;
wire_field_reader wire_read_top_in;
wire_field_reader wire_read_targets;
wire_field_reader wire_read_query_rows;
wire_field_reader wire_read_bias;
