/* SPDX-License-Identifier: Apache-2.0 */
/* ref_fold.h: additive scoring whose first products are folded into the projections. */
#ifndef ATTND_TESTS_REF_FOLD_H
#define ATTND_TESTS_REF_FOLD_H

#include "math/model.h"

/* A model with additive scoring that projects queries and keys by W_a W, as engines do:
 * these are what bfloat16 rounds. */
struct ref_folded {
    struct attn_model model; /* borrows all else of the model that it was made from */
    float *query_weight, *query_bias, *key_weight, *key_bias, *one;
};

/* Folds a model. Release it by ref_folded_deinit(), even after a failure, which is that
 * memory runs out: then `ret_folded` is not to be used. */
bool ref_folded_init(const attn_model *model, struct ref_folded *ret_folded);
void ref_folded_deinit(struct ref_folded *folded);

#endif
