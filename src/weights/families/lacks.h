/* SPDX-License-Identifier: Apache-2.0 */
/* lacks.h: what layers of checkpoints have, and what of it the engine cannot compute. */
#ifndef ATTND_WEIGHTS_FAMILIES_LACKS_H
#define ATTND_WEIGHTS_FAMILIES_LACKS_H

#include "weights/families/layer.h"

#define LACKS_TEXT_SIZE 320

/* Writes what of the layer the engine does not compute, such as "rotary positions, 2 key
 * heads for 4 query heads"; empty when it computes all. `pre_norm` asks for the norm
 * before the layer, too. */
void layer_describe_lacks(const struct layer *layer, bool pre_norm,
                          char ret_text[LACKS_TEXT_SIZE]);

/* Writes what makes the layer more than plain attention, such as "causal, rope default
 * 10000, window 4096"; or "plain". */
void layer_describe_features(const struct layer *layer, char ret_text[LACKS_TEXT_SIZE]);

#endif
