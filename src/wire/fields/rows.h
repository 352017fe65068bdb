/* SPDX-License-Identifier: Apache-2.0 */
/* rows.h: wire_field.read of what has a number for each row or head. */
#pragma once

#include "wire/fields/options.h"

wire_field_reader wire_read_head_mask;
wire_field_reader wire_read_valid_lens;
wire_field_reader wire_read_positions; /* of queries or keys */
wire_field_reader wire_read_query_rows;
wire_field_reader wire_read_bias;
