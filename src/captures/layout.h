/* SPDX-License-Identifier: Apache-2.0 */
/* captures/layout.h: what the header of a file says: its layers, and where the bytes of
 * each tensor go. */
#pragma once

#include "safetensors/header.h"
#include "wire/layer.h"
#include "wire/problem.h"

#include <stdint.h>

/* The tensors of a layer, in the order in which they are checked: what the keys are
 * decides whether the others fit. */
enum capture_tensor {
    CAPTURE_KEYS,
    CAPTURE_QUERIES,
    CAPTURE_VALUES,
    CAPTURE_BIAS,
    CAPTURE_SINKS,
    CAPTURE_SLOPES,
    CAPTURE_POSITIONS,
    CAPTURE_KEY_POSITIONS,
    /* Those of the capture. Layers whose keys or queries they count use them, if they are
     * of the text that the last layer is of. */
    CAPTURE_TOKEN_IDS,
    CAPTURE_TARGETS,
    CAPTURE_HIDDEN_STATES, /* no layer does */
    CAPTURE_NUM_TENSORS
};

/* A tensor of the file, and where its numbers go. */
struct capture_part {
    enum capture_tensor kind;
    size_t layer; /* its index; of a tensor of the capture the last that uses it */
    const struct dtype *type;
    uint64_t begin, end; /* bytes of the data */
    size_t offset;       /* of the block; its numbers are aligned to HEAP_ALIGNMENT */
    bool unused;         /* its bytes are not kept */
};

/* Owned by who made it; empty when zeroed. */
struct capture_layout {
    struct capture_layer *items;  /* [layers.count]; their pointers are set by _place() */
    struct capture_layers layers; /* the same, to read */
    char *names; /* those of the layers, one after the other with terminators */
    struct capture_part *parts; /* [num_parts], in the order of their bytes */
    size_t num_parts, num_left_out;
    size_t
        block_bytes;  /* of all numbers, as they are kept; a multiple of HEAP_ALIGNMENT */
    size_t own_bytes; /* of layers and names */
};

/* Reads the header. Returns false with *ret_problem set, and *ret_layout empty. */
bool capture_layout_make(const struct safetensors_header *header,
                         struct capture_layout *ret_layout,
                         struct wire_problem *ret_problem);

/* Points the layers at their numbers in a block of block_bytes. */
void capture_layout_place(struct capture_layout *layout, unsigned char *block);

/* Returns the name of a tensor, such as "queries"; constant. */
const char *capture_tensor_name(enum capture_tensor kind);

/* Whether the numbers of a tensor are kept as size_t: positions, ids, ranges. */
bool capture_tensor_counts(enum capture_tensor kind);

void capture_layout_deinit(struct capture_layout *layout);
