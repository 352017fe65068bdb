/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a request of the Open Inference Protocol before its numbers are read. */
#pragma once

#include "wire/checks/selection.h"
#include "wire/json/cursor.h"
#include "wire/oip/oip.h"

#define WIRE_OIP_RANK_MAX 3

enum wire_oip_name {
    WIRE_OIP_QUERIES,
    WIRE_OIP_KEYS,
    WIRE_OIP_VALUES,
    WIRE_OIP_VALID_LENS,
    WIRE_OIP_POSITIONS,
    WIRE_OIP_KEY_POSITIONS,
    WIRE_OIP_HEAD_MASK,
    WIRE_OIP_WEIGHTS_HEADS,
    WIRE_OIP_WEIGHTS_QUERIES,
    WIRE_OIP_NUM_INPUTS
};

/* How elements are stored in binary data. */
struct wire_oip_type {
    const char *name;
    size_t size;         /* bytes of an element */
    const char *dtype;   /* its name in base/dtype.h */
    bool is_binary_only; /* never in JSON */
};

/* An input that was found. It has `count` elements, the product of its shape, as JSON or
 * as binary data. The sizes of the shape are at least 1. They were compared with the
 * data: binary data has the right size, and JSON has at least count - 1 commas. */
struct wire_oip_input {
    const char *name;                 /* constant */
    bool integers;                    /* lengths or indices; else floats */
    const struct wire_oip_type *type; /* NULL: the request does not have it */
    size_t rank;
    size_t shape[WIRE_OIP_RANK_MAX];
    size_t count;
    struct wire_span data;      /* start is NULL when it is binary */
    const unsigned char *bytes; /* NULL when it is JSON; at any alignment */
};

/* What was found in a body. Points into it. */
struct wire_oip_scan {
    struct wire_oip_input inputs[WIRE_OIP_NUM_INPUTS];
    /* The values of the parameters weights_heads and weights_queries, which were not
     * checked. */
    struct wire_span selections[WIRE_NUM_SELECTED];
    struct wire_oip_reply reply; /* the text of its id was not checked */
    bool causal_given, causal, window_given;
    size_t window;
    attn_need_weights need_weights;
    int64_t timeout_ns;  /* wire_request.timeout_ns */
    uint32_t priority;   /* wire_request.priority */
    size_t decode_bytes; /* the most that decoding needs besides the body */
};
