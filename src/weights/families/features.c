/* SPDX-License-Identifier: Apache-2.0 */
/* features.c: says in words what a layer is. */
#include "weights/families/features.h"

#include "base/error.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A list of words in the making. */
struct word_list {
    char *text; /* [FEATURES_TEXT_SIZE] */
    size_t size;
};

__attribute__((format(printf, 2, 3))) static void list_add(struct word_list *list,
                                                           const char *format, ...) {
    size_t room = FEATURES_TEXT_SIZE - list->size;
    va_list arguments;

    int comma = snprintf(list->text + list->size, room, "%s", list->size > 0 ? ", " : "");
    if (comma < 0 || (size_t)comma >= room)
        return;
    va_start(arguments, format);
    int size = vsnprintf(list->text + list->size + comma, room - (size_t)comma, format,
                         arguments);
    va_end(arguments);
    if (size > 0 && (size_t)size + (size_t)comma < room)
        list->size += (size_t)size + (size_t)comma;
    else
        list->text[list->size] = '\0';
}

static bool has_plain_scale(const struct layer *layer) {
    double plain = 1 / sqrt((double)layer->head_size);
    return fabs(layer->scale - plain) <= 1e-12 * plain;
}

static void describe_bias(struct word_list *list, const struct layer_bias *bias) {
    switch (bias->kind) {
    case BIAS_NONE:
        break;
    case BIAS_ALIBI:
    case BIAS_ALIBI_ROUNDED:
        list_add(list, "alibi");
        break;
    case BIAS_BUCKETS:
        list_add(list, "bias of %zu buckets up to %zu", bias->num_buckets,
                 bias->max_distance);
        break;
    }
}

void layer_describe_features(const struct layer *layer,
                             char ret_text[FEATURES_TEXT_SIZE]) {
    static const char *const types[] = {
        [ROPE_DEFAULT] = "",         [ROPE_LINEAR] = " linear",
        [ROPE_DYNAMIC] = " dynamic", [ROPE_LLAMA3] = " llama3",
        [ROPE_YARN] = " yarn",       [ROPE_LONGROPE] = " longrope"};
    static const char *const norms[] = {[NORM_NONE] = "",
                                        [NORM_LAYER] = "layer norm",
                                        [NORM_RMS] = "RMS norm",
                                        [NORM_RMS_PLUS_ONE] = "RMS norm (1+w)"};
    struct word_list list = {.text = ret_text};
    const struct layer_norm *before = &layer->norm_before;

    ret_text[0] = '\0';
    if (layer->cross)
        list_add(&list, "cross");
    if (layer->causal)
        list_add(&list, "causal");
    if (layer->rope.dims > 0)
        list_add(&list, "rope%s%s %g of %zu", types[layer->rope.type],
                 layer->rope.interleaved ? " interleaved" : "", layer->rope.base,
                 layer->rope.dims);
    if (!has_plain_scale(layer))
        list_add(&list, "scale %g", layer->scale);
    if (layer->window > 0)
        list_add(&list, "window %zu%s", layer->window,
                 layer->causal ? "" : " on each side");
    if (layer->softcap > 0)
        list_add(&list, "softcap %g", layer->softcap);
    if (layer->clip > 0)
        list_add(&list, "clip %g", layer->clip);
    describe_bias(&list, &layer->bias);
    if (layer->sinks != NULL)
        list_add(&list, "sinks");
    if (layer->query_norm.kind != NORM_NONE)
        list_add(&list, "%s of %s", norms[layer->query_norm.kind],
                 layer->head_norm_whole ? "all heads" : "each head");
    if (before->kind != NORM_NONE)
        list_add(&list, "%s before%s", norms[before->kind],
                 before->weight != NULL ? "" : " (not in the file)");
    if (ret_text[0] == '\0')
        list_add(&list, "plain");
}
