/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h: reads the numbers of one input. */
#pragma once

#include "wire/oip/request.h"

/* What numbers are read from, and where they are allocated. Everything is borrowed. */
struct wire_oip_reader {
    const char *body; /* for line and column */
    struct arena *arena;
    struct wire_problem *problem;
};

/* Returns the most bytes of an arena that reading the input needs; SIZE_MAX when that is
 * too large to be computed. */
size_t wire_oip_input_cost(const struct wire_oip_input *input);

/* Returns the numbers of an input as float32: in the body where they are aligned float32,
 * else in the arena; NULL with the problem set. In binary data, what is not a
 * finite float32 becomes NaN or infinite: see wire_finite_check(). */
const float *wire_oip_read_floats(const struct wire_oip_reader *reader,
                                  const struct wire_oip_input *input);

/* Returns the integers of an input, all within `least`..`max`, those below 0 modulo 2^64;
 * NULL with the problem set. `limit` is the reason for an error ("its sequence has 6
 * keys"). */
const size_t *wire_oip_read_integers(const struct wire_oip_reader *reader,
                                     const struct wire_oip_input *input, int64_t least,
                                     size_t max, const char *limit);

/* Sets the reader's problem and returns false: the input has another shape than
 * `wanted`. */
bool wire_oip_refuse_shape(const struct wire_oip_reader *reader,
                           const struct wire_oip_input *input, const char *wanted);
