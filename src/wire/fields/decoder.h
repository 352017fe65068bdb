/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.h: a request while its fields are read, whatever its format. */
#pragma once

#include "math/plan/results.h"
#include "wire/fields/source.h"
#include "wire/layer.h"
#include "wire/tensor.h"

#include <attnd/model.h>

/* Keys that were left out are the queries, and values that were left out are the keys: in
 * the same memory, not a copy. */
struct wire_tensors {
    struct wire_tensor queries, keys, values;
    bool keys_sent, values_sent;
};

/* A number for each head, in the arena or body of a request. */
struct wire_head_list {
    const float *numbers; /* [count]; NULL: left out */
    size_t count;
};

/* The options of a request without a model. Its sizes and these become one. */
struct wire_given {
    size_t num_heads, num_kv_heads; /* 0: left out */
    bool has_scale;
    double scale, softcap; /* a softcap of 0: left out */
    struct wire_head_list sinks, slopes;
    /* The layer that has what the request leaves out; NULL: tensors are sent. */
    const struct capture_layer *stored;
    size_t query_rows[2]; /* the stored queries that are used: the first, and the end */
};

/* A request that is being read. */
struct wire_decoder {
    const struct wire_source *source;
    struct wire_request request;
    bool needs[NUM_RESULTS]; /* named in need; of several that share a word, the first */
    struct wire_given given; /* without a model */
    struct wire_tensors tensors;
};

/* Reads all fields of source->input into decoder->request, whose words of need may be set
 * already. Finds the model or the layer of a capture first, then reserves what reading
 * needs and `extra` bytes. Every size has been checked, so that attn_plan() can only fail
 * on overflow. Returns false with the problem of the source set. */
bool wire_decode(struct wire_decoder *decoder, size_t extra);
