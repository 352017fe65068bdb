/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: the tensors of a safetensors body, as numbers.
 *
 * Each reader returns false with the problem set: Wrong dtype, Wrong rank, Empty tensor,
 * Out of range, Shape mismatch, Out of memory. */
#ifndef ATTND_WIRE_SAFETENSORS_TENSORS_H
#define ATTND_WIRE_SAFETENSORS_TENSORS_H

#include "base/arena.h"
#include "safetensors/header.h"
#include "wire/problem.h"
#include "wire/tensor.h"

enum wire_part {
    WIRE_PART_QUERIES,
    WIRE_PART_KEYS,
    WIRE_PART_VALUES,
    WIRE_PART_VALID_LENS,
    WIRE_PART_HEAD_MASK,
    WIRE_PART_WEIGHTS_HEADS,
    WIRE_PART_WEIGHTS_QUERIES,
    WIRE_PART_QUERY_LENS,
    WIRE_PART_KEY_LENS,
    WIRE_NUM_PARTS
};

/* A body whose header was parsed. All is borrowed. */
struct wire_parts {
    const struct safetensors_tensor *tensors[WIRE_NUM_PARTS]; /* NULL: left out */
    const unsigned char *data; /* of the body, the first byte past the header */
    struct arena *arena;
    struct wire_problem *problem;
};

/* Returns the name of the tensor. */
const char *wire_part_name(enum wire_part part);

/* Returns the most bytes of the arena that the readers below take for all parts; SIZE_MAX
 * when that is too large to be computed. */
size_t wire_parts_cost(const struct wire_parts *parts);

/* Whether a float tensor is used where it lies: float32 at a multiple of 4 bytes. */
bool wire_part_in_place(const struct wire_parts *parts, enum wire_part part);

/* Refuses a rank outside `least`..`most`; `why` ends the sentence "send ...". */
bool wire_part_check_rank(const struct wire_parts *parts, enum wire_part part, size_t min,
                          size_t max, const char *why);

/* Reads F32, F16, BF16 or F64, all finite, in its own shape. */
bool wire_part_read_floats(const struct wire_parts *parts, enum wire_part part,
                           const float **ret_numbers);

/* Reads I32 or I64, in its own shape. `least` is checked here; negative numbers never
 * pass. */
bool wire_part_read_integers(const struct wire_parts *parts, enum wire_part part,
                             size_t min, size_t **ret_numbers);

/* Reads queries, keys or values: [B, T, width], or [T, width], or, with `lens`, which are
 * a part or NULL, [sum of lens, width]. The rank must be within `least`..`most`
 * where there are no lens. */
bool wire_part_read_tensor(const struct wire_parts *parts, enum wire_part part,
                           const enum wire_part *lens, size_t min, size_t max,
                           struct wire_tensor *ret_tensor);

#endif
