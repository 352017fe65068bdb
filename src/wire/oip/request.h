/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a request of the Open Inference Protocol before its numbers are read. */
#pragma once

#include "wire/fields/decoder.h"
#include "wire/json/list.h"
#include "wire/oip/oip.h"

#define WIRE_OIP_RANK_MAX 4

/* The binary data of a request that belongs to no input yet. */
struct wire_oip_binary {
    const unsigned char *at; /* NULL: no header states where it begins */
    size_t size;
};

/* The parts of a body that were found. Points into it, and into itself. */
struct wire_oip_scan {
    struct wire_source source;
    size_t shapes[WIRE_NUM_FIELDS][WIRE_OIP_RANK_MAX]; /* of inputs */
    struct wire_oip_binary binary;
    bool binary_output;          /* of outputs that do not say it themselves */
    struct wire_oip_reply reply; /* the text of its id was not checked */
};

/* Finds everything, and compares shapes with data. Allocates nothing, except for a string
 * that has escapes. Returns false with *ret_problem set. Thread-safe. */
bool wire_oip_scan(const struct wire_input *input, struct wire_oip_scan *ret_scan,
                   struct wire_problem *ret_problem);

/* Scans an element of `inputs`, the object at the cursor, into the value of its name, and
 * moves scan->binary past its data; `context` is the struct wire_oip_scan. The shape was
 * compared with the data: binary data has the right size, and JSON has at least count - 1
 * commas. A name may appear once. */
wire_element_reader wire_oip_input_scan;

/* Scans the parameters at `span`, which may be empty; ret_values[keys->count] are then
 * empty too. What a client of MLServer states at `codec`, one of these, is "np", since
 * tensors are arrays of numbers: Wrong dtype, and as wire_object_scan(). */
bool wire_oip_parameters_scan(const struct wire_cursor *cursor,
                              const struct wire_span *span, size_t depth,
                              const struct wire_keys *keys, size_t codec,
                              struct wire_span *ret_values);
