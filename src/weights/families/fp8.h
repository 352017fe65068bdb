/* SPDX-License-Identifier: Apache-2.0 */
/* fp8.h: weights in FP8 (E4M3), beside the scales that make numbers of them. A matrix X
 * has its scales in a tensor X_scale_inv or X_scale; a number is what is stored, times
 * the scale of its block. quantization_config of config.json says what a block is. */
#pragma once

#include "weights/families/tensors.h"

#include <jansson.h>

#define FP8_FORMS_MAX 3 /* one a matrix, one a row, and one size of blocks */

struct fp8_form {
    size_t rows, columns; /* of a block; 0: as many as the matrix has */
};

struct fp8 {
    const json_t *quantization; /* borrowed of config.json; NULL: it has none */
    const char *wrong; /* the key in it that attnd cannot follow, a constant, or NULL */
    struct fp8_form forms[FP8_FORMS_MAX]; /* that a matrix may have, [num_forms] */
    size_t num_forms;
    bool exponents; /* a scale of type U8 is an exponent, as one of F8_E8M0 is */
    struct safetensors_scale *scales; /* of all tensors of the folder that are read so */
};

/* Finds how FP8 is read from the folder, and lets all its FP8 tensors that have fitting
 * scales be read as other tensors are. *ret_fp8 borrows from `config`, and `tensors` from
 * *ret_fp8, which must not move, and which the caller must deinit, also after a failure.
 * Errors: ATTN_E_NOMEM, with one line. */
attn_status fp8_attach(const json_t *config, struct folder_tensors *tensors,
                       struct fp8 *ret_fp8, attn_error *ret_error);

/* Frees the memory; zeroed is fine. */
void fp8_deinit(struct fp8 *fp8);

/* Says why a tensor whose type has no to_float cannot be read, in one line, unless *error
 * has an error already: ATTN_E_UNSUPPORTED, _FORMAT or _SHAPE. */
void fp8_refuse(const struct tensor_view *view, const struct safetensors_tensor *tensor,
                attn_error *error);
