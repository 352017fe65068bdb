/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a request of the Open Inference Protocol whose numbers are not read yet.
 */
#ifndef ATTND_WIRE_OIP_REQUEST_H
#define ATTND_WIRE_OIP_REQUEST_H

#include "wire/json/cursor.h"
#include "wire/oip/oip.h"

#define WIRE_OIP_RANK_MAX 3

enum wire_oip_name {
    WIRE_OIP_QUERIES,
    WIRE_OIP_KEYS,
    WIRE_OIP_VALUES,
    WIRE_OIP_VALID_LENS,
    WIRE_OIP_HEAD_MASK,
    WIRE_OIP_NUM_INPUTS
};

/* How elements are stored in binary data. */
struct wire_oip_type {
    const char *name;
    size_t size;         /* bytes of an element */
    const char *dtype;   /* base/dtype.h's name, of floats; NULL: a signed integer */
    bool is_binary_only; /* never in JSON */
};

/* An input as it was found: `count` elements, the product of its shape, in one of two
 * forms. A shape's sizes are at least 1, and were held against the data: binary data has
 * the right size, and JSON data at least as many commas. */
struct wire_oip_input {
    const char *name;                 /* constant */
    const struct wire_oip_type *type; /* NULL: the request does not have it */
    size_t rank;
    size_t shape[WIRE_OIP_RANK_MAX];
    size_t count;
    struct wire_span data;      /* start is NULL when it is binary */
    const unsigned char *bytes; /* NULL when it is JSON; at any alignment */
};

/* What was found in a body; it points into it. */
struct wire_oip_scan {
    struct wire_oip_input inputs[WIRE_OIP_NUM_INPUTS];
    struct wire_oip_reply reply; /* its id points into the body, and was not checked */
    bool causal_given, causal;
    attn_need_weights need_weights;
    size_t decode_bytes; /* the most that decoding takes, besides the body itself */
};

#endif
