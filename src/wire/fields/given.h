/* SPDX-License-Identifier: Apache-2.0 */
/* given.h: what the formats of POST /v1/attention/dot-product have in common. A request
 * there has queries, keys and values, and no model: its sizes and options become one. */
#pragma once

#include "wire/fields/tensor_check.h"
#include "wire/layer.h"
#include "wire/options.h"

/* A number for each head, in the arena or body of a request. */
struct wire_head_list {
    const float *numbers; /* [count]; NULL: left out */
    size_t count;
};

/* The options of a request, besides its tensors. */
struct wire_given {
    size_t num_heads, num_kv_heads; /* 0: left out */
    bool has_scale;
    double scale, softcap; /* a softcap of 0: left out */
    struct wire_head_list sinks, slopes;
    bool need_sent;
    /* The layer that has what the request leaves out; NULL: tensors are sent. */
    const struct capture_layer *stored;
    bool rows_sent;       /* query_rows was sent */
    size_t query_rows[2]; /* the stored queries that are used: the first, and the end */
    bool queries_sent;    /* others are sent instead */
};

/* A bias as it was sent: [Tq][Tk], [H][Tq][Tk] or [B][H][Tq][Tk]. */
struct wire_bias {
    size_t rank, shape[4];
    const float *numbers;
};

/* Returns whether heads are an axis of queries, keys and values. */
static inline bool wire_given_has_axis(const struct wire_given *given) {
    return given->num_heads == 0;
}

/* Checks a softcap that was sent: Out of range. */
bool wire_given_check_softcap(double softcap, struct wire_problem *ret_problem);

/* Reads queries, keys and values from `source`, whose ranks count an axis of heads not.
 * Returns false with *ret_problem set, by the source or here: Missing key, Shape
 * mismatch. */
bool wire_given_read(wire_tensor_source *source, const void *context,
                     const struct wire_given *given, struct wire_tensors *ret_tensors,
                     struct wire_problem *ret_problem);

/* Makes the model of a request, in the arena, and sets the model, the tensors and what
 * the reply has by the words of `need`. Returns false with *ret_problem set: Shape
 * mismatch, Missing key, Request too large, Out of memory. */
bool wire_given_apply(const struct wire_given *given, struct wire_need *need,
                      const struct wire_tensors *tensors, struct arena *arena,
                      struct wire_request *request, struct wire_problem *ret_problem);

/* The most bytes of the arena that wire_given_apply() needs. */
size_t wire_given_cost(void);

/* Sets the bias of a request whose tensors are set: Shape mismatch, Out of range. */
bool wire_given_set_bias(const struct wire_bias *bias, struct wire_request *request,
                         struct wire_problem *ret_problem);

/* Refuses a causal mask where there are fewer queries than keys without positions: the
 * last query would see the first keys only. Missing key. */
bool wire_given_check_causal(const attn_request *batch, struct wire_problem *ret_problem);
