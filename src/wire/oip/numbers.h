/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h: the numbers of one input. */
#ifndef ATTND_WIRE_OIP_NUMBERS_H
#define ATTND_WIRE_OIP_NUMBERS_H

#include "wire/oip/request.h"

/* Where numbers are read from, and what for. */
struct wire_oip_reader {
    const char *body; /* for line and column */
    struct arena *arena;
    struct wire_problem *problem;
};

/* Returns the most bytes of an arena that reading the input takes; SIZE_MAX when that
 * does not fit. */
size_t wire_oip_cost(const struct wire_oip_input *input);

/* Returns the input's numbers as float32: in the body where they lie there as such, else
 * in the arena; NULL with the problem set. What is no finite float32 in binary data
 * becomes NaN or infinite, as it may stand where no key is attended to. */
const float *wire_oip_floats(const struct wire_oip_reader *reader,
                             const struct wire_oip_input *input);

/* Returns the input's whole numbers, all within 0..`most`; NULL with the problem set.
 * `limit` says why they must be ("there are 6 keys"). */
const size_t *wire_oip_integers(const struct wire_oip_reader *reader,
                                const struct wire_oip_input *input, size_t max,
                                const char *limit);

#endif
