/* SPDX-License-Identifier: Apache-2.0 */
/* native.h: the JSON of POST /v1/attention and its routes (docs/protocol.md). The server
 * needs only the functions and the table at the end; the benchmark also scans. */
#pragma once

#include "wire/fields/source.h"

/* Finds the fields of a body without reading their values. `requests` is one of
 * WIRE_TO_.... Allocates nothing, except for a key that has escapes. Returns false with
 * *ret_problem set: Malformed JSON, Wrong type, Unknown key or Duplicate key in the
 * request's own object, or Nested too deeply. Thread-safe. */
bool wire_native_scan(const struct wire_input *input, unsigned requests,
                      struct wire_source *ret_source, struct wire_problem *ret_problem);

/* --- for the server --- */

wire_read wire_native_read;
/* POST /v1/attention/dot-product, and attention of the capture of the input. */
wire_read wire_native_read_given;
extern const struct wire_writer wire_native_writer;
