/* SPDX-License-Identifier: Apache-2.0 */
/* native.h: the JSON of POST /v1/attention and its routes (docs/protocol.md). The server
 * needs only the functions and the table at the end; the benchmark also scans. */
#pragma once

#include "wire/fields/source.h"

#include <attnd/program.h>

/* Finds the fields of a body without reading their values. Allocates nothing, except for
 * a key that has escapes. Returns false with *ret_problem set: Malformed JSON, Wrong
 * type, Unknown key or Duplicate key in the request's own object, or Nested too deeply.
 * Thread-safe. */
bool wire_native_scan(const struct wire_input *input, struct wire_source *ret_source,
                      struct wire_problem *ret_problem);

/* --- for the server --- */

wire_read wire_native_read; /* with a model, without one, or of a capture */
extern const struct wire_writer wire_native_writer;

/* --- for programs --- */

/* Reads a request whose body has the options, an object that may lack all, and whose
 * fields may be arrays in the memory of a program: for the only model of the input, or
 * without one. float32 that lies row by row at a multiple of 4 bytes is not copied, nor
 * are 16-bit keys without a model: wire_request.in_body. */
bool wire_arrays_read(const struct wire_input *input, const attn_array *arrays,
                      size_t num_arrays, struct wire_request *ret_request,
                      struct wire_problem *ret_problem);
