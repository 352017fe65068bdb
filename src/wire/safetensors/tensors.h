/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h: reads the tensors of a safetensors body as numbers.
 *
 * Each reader returns false with the problem set: Wrong dtype, Wrong type, Wrong rank,
 * Empty tensor, Out of range, Shape mismatch, Out of memory. */
#pragma once

#include "base/arena.h"
#include "safetensors/header.h"
#include "wire/integers.h"
#include "wire/problem.h"
#include "wire/tensor.h"

/* The tensors that a request may have. */
enum wire_safetensors_id {
    WIRE_SAFETENSORS_QUERIES,
    WIRE_SAFETENSORS_KEYS,
    WIRE_SAFETENSORS_VALUES,
    WIRE_SAFETENSORS_VALID_LENS,
    WIRE_SAFETENSORS_POSITIONS,
    WIRE_SAFETENSORS_KEY_POSITIONS,
    WIRE_SAFETENSORS_HEAD_MASK,
    WIRE_SAFETENSORS_WEIGHTS_HEADS,
    WIRE_SAFETENSORS_WEIGHTS_QUERIES,
    WIRE_SAFETENSORS_SPANS,
    WIRE_SAFETENSORS_TOP_IN,
    WIRE_SAFETENSORS_TARGETS,
    WIRE_SAFETENSORS_BIAS,
    WIRE_SAFETENSORS_SINKS,
    WIRE_SAFETENSORS_SLOPES,
    WIRE_SAFETENSORS_QUERY_LENS,
    WIRE_SAFETENSORS_KEY_LENS,
    WIRE_SAFETENSORS_QUERY_ROWS, /* of a capture only */
    WIRE_SAFETENSORS_NUM_TENSORS
};

/* A body whose header was parsed. Everything is borrowed. */
struct wire_safetensors_body {
    /* By id; NULL: left out. */
    const struct safetensors_tensor *tensors[WIRE_SAFETENSORS_NUM_TENSORS];
    const unsigned char *data; /* the first byte of the body that follows the header */
    bool given;                /* it is a request without a model */
    bool heads_axis;           /* heads are an axis of queries, keys and values */
    struct arena *arena;
    struct wire_problem *problem;
};

/* Returns the name of a tensor; constant. */
const char *wire_safetensors_name(enum wire_safetensors_id id);

/* Returns the most bytes of the arena that reading all tensors of a request to a model
 * with `num_heads` heads needs; SIZE_MAX when that is too large to be computed. */
size_t wire_safetensors_cost(const struct wire_safetensors_body *body, size_t num_heads);

/* Returns the rank of queries with a batch axis. */
static inline size_t
wire_safetensors_batched_rank(const struct wire_safetensors_body *body) {
    return WIRE_LEVELS_BATCHED + (size_t)body->heads_axis;
}

/* Returns whether some floats are used where they are in the body, which must then be
 * kept: float32 at a multiple of 4 bytes, and keys of a request without a model. */
bool wire_safetensors_is_in_body(const struct wire_safetensors_body *body);

/* Refuses a rank outside `min`..`max`; `shapes` ends the sentence "send ...". */
bool wire_safetensors_check_rank(const struct wire_safetensors_body *body,
                                 enum wire_safetensors_id id, size_t min, size_t max,
                                 const char *shapes);

/* Reads F32, F16, BF16 or F64 in the tensor's own shape. What is not a finite float32
 * becomes NaN or infinite: see wire_finite_check(). */
bool wire_safetensors_read_floats(const struct wire_safetensors_body *body,
                                  enum wire_safetensors_id id, const float **ret_numbers);

/* Prepares to read integers, and allocates room for as many in the arena. */
bool wire_safetensors_open_integers(const struct wire_safetensors_body *body,
                                    enum wire_safetensors_id id,
                                    struct wire_integers *ret_integers,
                                    size_t **ret_room);

/* Reads queries, keys or values: [B, T, width], [T, width], or, when the body has their
 * lengths, [sum of lengths, width]. Without lengths, the rank must be within
 * `min`..`max`. */
bool wire_safetensors_read_tensor(const struct wire_safetensors_body *body,
                                  enum wire_safetensors_id id, size_t min, size_t max,
                                  struct wire_tensor *ret_tensor);
