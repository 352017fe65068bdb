/* SPDX-License-Identifier: Apache-2.0 */
/* features.h: describes layers of checkpoints for attnd inspect. */
#pragma once

#include "math/features.h"
#include "weights/layer/layer.h"

/* Writes what makes the layer more than plain attention, such as "causal, rope default
 * 10000, window 4096"; or "plain". */
void layer_describe_features(const struct layer *layer,
                             char ret_text[FEATURES_TEXT_SIZE]);
