/* SPDX-License-Identifier: Apache-2.0 */
/* features.c: adds what the files of a layer have to the list of its features. */
#include "weights/families/features.h"

#include "weights/layer/make.h"

#include <string.h>

void layer_describe_features(const struct layer *layer,
                             char ret_text[FEATURES_TEXT_SIZE]) {
    const struct features_origin origin = {
        .lender = layer->lender,
        .value_factor = layer->value_factor,
        .interleaved = layer->rotation.interleaved,
        .sections = layer->rotation.section_sizes,
        .sections_interleaved = layer->rotation.sections == SECTIONS_INTERLEAVED,
        .num_buckets = layer->bias.num_buckets,
        .plus_one = layer->query_norm.plus_one || layer->norm_before.plus_one,
        .bare_heads = layer->query_norm.bare,
        .bare_before = layer->norm_before.bare};
    struct features features;
    attn_model_info info;

    layer_fill_info(layer, false, &info);
    features_list(&info, &origin, &features);
    strcpy(ret_text, features.text);
}
