/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the strings of __metadata__ in the header of a safetensors body. */
#pragma once

#include "safetensors/header.h"
#include "wire/options.h"

enum wire_safetensors_option {
    WIRE_OPTION_MODEL, /* the first three with a model only */
    WIRE_OPTION_NEED_WEIGHTS,
    WIRE_OPTION_CAUSAL,
    WIRE_OPTION_WINDOW,
    WIRE_OPTION_NEED,
    WIRE_OPTION_TIMEOUT_MS,
    WIRE_OPTION_PRIORITY,
    WIRE_OPTION_TOP_K,
    WIRE_OPTION_BLOCK,
    WIRE_OPTION_NUM_HEADS, /* from here on without a model only */
    WIRE_OPTION_NUM_KV_HEADS,
    WIRE_OPTION_SCALE,
    WIRE_OPTION_SOFTCAP,
    WIRE_OPTION_LAYER, /* of a capture only */
    WIRE_NUM_OPTIONS
};

/* What is said about options in an error about a tensor. */
#define WIRE_OPTIONS_LIST                                                                \
    "model, causal, window, need, need_weights, timeout_ms, priority, top_k and block"
#define WIRE_OPTIONS_LIST_GIVEN                                                          \
    "causal, window, need, timeout_ms, priority, top_k, block, num_heads, "              \
    "num_kv_heads, scale and softcap"

#define WIRE_OPTIONS_LIST_STORED                                                         \
    "layer, causal, window, need, timeout_ms, priority, top_k, block, num_heads, scale " \
    "and softcap"

/* The options of a body, borrowed from its header. */
struct wire_safetensors_options {
    bool given;  /* of a request without a model */
    bool stored; /* of one that asks a capture; then `given` too */
    const char *texts[WIRE_NUM_OPTIONS]; /* NULL: left out */
    struct wire_problem *problem;
};

/* Refuses a name; `what` is what it is not, and `advice` what to do. */
bool wire_safetensors_refuse_name(const char *name, bool given, const char *what,
                                  const char *advice, struct wire_problem *ret_problem);

/* Finds the options; `options` has `given` and `problem`: Unknown key. */
bool wire_safetensors_find_options(const struct safetensors_header *header,
                                   struct wire_safetensors_options *options);

/* Reads causal, window, need, timeout_ms and priority. */
bool wire_safetensors_read_options(const struct wire_safetensors_options *options,
                                   struct wire_request *request, struct wire_need *need);

/* Reads need_weights: Wrong type, Outputs disagree. */
bool wire_safetensors_read_need_weights(const struct wire_safetensors_options *options,
                                        attn_need_weights *ret_need);

/* Read a number and a count, as wire_number_read() and wire_count_read() do. */
bool wire_safetensors_read_number(const struct wire_safetensors_options *options,
                                  enum wire_safetensors_option option,
                                  double *ret_number);
bool wire_safetensors_read_count(const struct wire_safetensors_options *options,
                                 enum wire_safetensors_option option, const char *thing,
                                 size_t *ret_count);
