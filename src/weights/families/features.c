/* SPDX-License-Identifier: Apache-2.0 */
/* features.c: lists what makes a layer more than plain attention. */
#include "weights/families/features.h"

#include "weights/layer/frequencies.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A list, separated by commas, in the making. */
struct feature_list {
    char *text; /* [FEATURES_TEXT_SIZE] */
    size_t size;
};

__attribute__((format(printf, 2, 3))) static void add_feature(struct feature_list *list,
                                                              const char *format, ...) {
    size_t room = FEATURES_TEXT_SIZE - list->size;
    char feature[96];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(feature, sizeof feature, format, arguments);
    va_end(arguments);
    int size = snprintf(list->text + list->size, room, "%s%s", list->size > 0 ? ", " : "",
                        feature);
    if (size > 0 && (size_t)size < room)
        list->size += (size_t)size;
    else
        list->text[list->size] = '\0';
}

static bool has_plain_scale(const struct layer *layer) {
    double plain = 1 / sqrt((double)layer->head_size);
    return fabs(layer->scale - plain) <= 1e-12 * plain;
}

/* Adds what is special about queries, keys and values, but for norms. */
static void add_rows(struct feature_list *list, const struct layer *layer) {
    if (layer->latent.query > 0)
        add_feature(list, "latent queries of %zu", layer->latent.query);
    if (layer->latent.key > 0)
        add_feature(list, "latent keys of %zu + %zu", layer->latent.key,
                    layer->latent.shared);
    if (layer->value_size != layer->head_size)
        add_feature(list, "values of size %zu", layer->value_size);
    if (layer->value_factor != 1)
        add_feature(list, "values times %g", layer->value_factor);
    if (layer->rotation.values)
        add_feature(list, "values rotated");
    if (layer->query_factor.length > 0)
        add_feature(list, "queries times 1 + %g ln(1 + (i + %zu) / %zu)",
                    layer->query_factor.beta, layer->query_factor.offset,
                    layer->query_factor.length);
}

/* Adds how queries and keys are rotated. */
static void add_rotation(struct feature_list *list,
                         const struct layer_rotation *rotation) {
    const size_t *sections = rotation->section_sizes;
    bool scaled = rotation->type != ROTATION_DEFAULT;

    if (rotation->dims > 0)
        add_feature(list, "rope%s%s%s %g of %zu", scaled ? " " : "",
                    scaled ? rotation_type_name(rotation->type) : "",
                    rotation->interleaved ? " interleaved" : "", rotation->base,
                    rotation->dims);
    if (rotation->sections != SECTIONS_NONE)
        add_feature(list, "sections %zu %zu %zu%s", sections[0], sections[1], sections[2],
                    rotation->sections == SECTIONS_INTERLEAVED ? " interleaved" : "");
    if (rotation->grid > 0)
        add_feature(list, "grid of %zu x %zu behind %zu", rotation->grid, rotation->grid,
                    rotation->grid_first);
}

void layer_describe_features(const struct layer *layer,
                             char ret_text[FEATURES_TEXT_SIZE]) {
    static const char *const norms[] = {
        [ATTN_NORM_LAYER] = "layer norm", [ATTN_NORM_RMS] = "RMS norm"};
    struct feature_list list = {.text = ret_text};
    const struct layer_norm *before = &layer->norm_before;

    ret_text[0] = '\0';
    if (layer->cross)
        add_feature(&list, "cross");
    if (layer->borrows)
        add_feature(&list, "keys of layer %zu", layer->lender);
    if (layer->causal)
        add_feature(&list, "causal");
    add_rotation(&list, &layer->rotation);
    add_rows(&list, layer);
    if (!has_plain_scale(layer))
        add_feature(&list, "scale %g", layer->scale);
    if (layer->window > 0)
        add_feature(&list, "window %zu%s", layer->window,
                    layer->causal ? "" : " on each side");
    if (layer->chunk > 0)
        add_feature(&list, "chunks of %zu", layer->chunk);
    if (layer->softcap > 0)
        add_feature(&list, "softcap %g", layer->softcap);
    if (layer->clip > 0)
        add_feature(&list, "clip %g%s", layer->clip,
                    layer->clip_last ? " after norms" : "");
    if (layer->bias.kind == ATTN_BIAS_BUCKETS)
        add_feature(&list, "bias of %zu buckets up to %zu", layer->bias.num_buckets,
                    layer->bias.max_distance);
    else if (layer->bias.kind != ATTN_BIAS_NONE)
        add_feature(&list, "alibi");
    if (layer->sinks != NULL)
        add_feature(&list, "sinks");
    if (layer->query_norm.kind != ATTN_NORM_NONE)
        add_feature(&list, "%s%s of %s%s%s", norms[layer->query_norm.kind],
                    layer->query_norm.plus_one ? " (1+w)"
                    : layer->query_norm.bare   ? " without weight"
                                               : "",
                    layer->head_norm_whole ? "all heads" : "each head",
                    layer->head_norm_each ? " by its own weights" : "",
                    layer->head_norm_last ? " after the rotation" : "");
    if (layer->value_norm.kind != ATTN_NORM_NONE)
        add_feature(&list, "%s of values", norms[layer->value_norm.kind]);
    if (layer->linears[LAYER_GATE].weight != NULL)
        add_feature(&list, "gate");
    if (layer->out_norm.kind != ATTN_NORM_NONE)
        add_feature(&list, "%s of heads' outputs", norms[layer->out_norm.kind]);
    if (before->kind != ATTN_NORM_NONE)
        add_feature(&list, "%s%s before%s", norms[before->kind],
                    before->plus_one ? " (1+w)" : "",
                    before->bare             ? " without weight"
                    : before->weight != NULL ? ""
                                             : " (not in the file)");
    if (ret_text[0] == '\0')
        add_feature(&list, "plain");
}
