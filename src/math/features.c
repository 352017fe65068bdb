/* SPDX-License-Identifier: Apache-2.0 */
/* features.c: the list of features. A new one is a line here. */
#include "math/features.h"

#include <attnd/attention.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What a feature does to a layer, see struct features_effects. Each effect includes those
 * before it. */
enum effect { DIRECT, INDIRECT, FINISHES, FINISHES_VALUES };

/* Adds a feature, if it is `present`: whether it is more than plain attention, and what
 * it is, unless that is "". */
__attribute__((format(printf, 5, 6))) static void add(struct features *list, bool present,
                                                      enum effect effect, bool more,
                                                      const char *format, ...) {
    size_t used = strlen(list->text);
    char feature[96];
    va_list arguments;

    if (!present)
        return;
    list->more |= more;
    list->effects.indirect |= effect != DIRECT;
    list->effects.finishes |= effect >= FINISHES;
    list->effects.finishes_values |= effect == FINISHES_VALUES;
    va_start(arguments, format);
    int size = vsnprintf(feature, sizeof feature, format, arguments);
    va_end(arguments);
    if (size > 0 && used + strlen(feature) + 2 < sizeof list->text)
        snprintf(list->text + used, sizeof list->text - used, "%s%s",
                 used > 0 ? ", " : "", feature);
}

static bool has_own_scale(const attn_model_info *info) {
    double plain = 1 / sqrt((double)info->width.score);
    return fabs(info->score.scale - plain) > 1e-12 * plain;
}

/* Adds where queries and keys are from, and how they are rotated. */
static void add_sources(const attn_model_info *info, const struct features_origin *origin,
                        struct features *list) {
    const char *kind = info->kind != NULL ? info->kind : "self";
    const char *type = info->rotation.size > 0 ? info->rotation.type : "default";
    static const size_t none[ATTN_AXES];
    const size_t *sections = origin->sections != NULL ? origin->sections : none;
    size_t grid = info->rotation.grid;
    bool scaled = strcmp(type, "default") != 0;

    add(list, info->projection.given, INDIRECT, false, "%s", "");
    add(list, info->num_kv_heads != info->num_heads, INDIRECT, true, "%s", "");
    add(list, strcmp(kind, "cross") == 0, DIRECT, false, "cross");
    add(list, strcmp(kind, "borrowed") == 0, DIRECT, false, "keys of layer %zu",
        origin->lender);
    add(list, info->mask.causal, DIRECT, false, "causal");
    add(list, info->rotation.size > 0, FINISHES, true, "rope%s%s%s %g of %zu",
        scaled ? " " : "", scaled ? type : "", origin->interleaved ? " interleaved" : "",
        info->rotation.base, info->rotation.size);
    add(list, info->rotation.axes > 1, INDIRECT, false, "sections %zu %zu %zu%s",
        sections[0], sections[1], sections[2],
        origin->sections_interleaved ? " interleaved" : "");
    add(list, grid > 0, INDIRECT, false, "grid of %zu x %zu behind %zu", grid, grid,
        info->rotation.grid_first);
}

/* Adds what is special about projected rows, but for norms. */
static void add_rows(const attn_model_info *info, const struct features_origin *origin,
                     struct features *list) {
    double factor = origin->value_factor;

    add(list, info->latent.query > 0, INDIRECT, true, "latent queries of %zu",
        info->latent.query);
    add(list, info->latent.key > 0, INDIRECT, true, "latent keys of %zu + %zu",
        info->latent.key - info->latent.shared, info->latent.shared);
    add(list, info->width.score != info->width.head, DIRECT, true, "values of size %zu",
        info->width.head);
    add(list, factor != 0 && factor != 1, DIRECT, false, "values times %g", factor);
    add(list, info->rotation.values, FINISHES_VALUES, false, "values rotated");
    add(list, info->query_factor.length > 0, FINISHES, true,
        "queries times 1 + %g ln(1 + (i + %zu) / %zu)", info->query_factor.beta,
        info->query_factor.offset, info->query_factor.length);
}

/* Adds what becomes of scores. */
static void add_scores(const attn_model_info *info, size_t num_buckets,
                       struct features *list) {
    bool buckets = info->score.bias == ATTN_BIAS_BUCKETS;
    bool alibi = info->score.bias == ATTN_BIAS_ALIBI ||
                 info->score.bias == ATTN_BIAS_ALIBI_ROUNDED;

    add(list, has_own_scale(info), DIRECT, true, "scale %g", info->score.scale);
    add(list, info->mask.window > 0, DIRECT, true, "window %zu%s", info->mask.window,
        info->mask.causal ? "" : " on each side");
    add(list, info->mask.chunk > 0, DIRECT, true, "chunks of %zu", info->mask.chunk);
    add(list, info->score.softcap > 0, INDIRECT, true, "softcap %g", info->score.softcap);
    add(list, info->projection.clip > 0, INDIRECT, true, "clip %g%s",
        info->projection.clip, info->projection.clip_last ? " after norms" : "");
    add(list, buckets, INDIRECT, true, "bias of %zu buckets up to %zu", num_buckets,
        info->score.bias_distance);
    add(list, alibi, INDIRECT, true, "alibi");
    add(list, info->score.position_keys, INDIRECT, true, "content to position of %zu",
        info->score.position_rows);
    add(list, info->score.position_queries, INDIRECT, true, "position to content of %zu",
        info->score.position_rows);
    add(list, info->score.sinks, INDIRECT, true, "sinks");
}

/* Adds norms, and the gate. */
static void add_norms(const attn_model_info *info, const struct features_origin *origin,
                      struct features *list) {
    static const char *const kinds[] = {[ATTN_NORM_NONE] = "",
                                        [ATTN_NORM_LAYER] = "layer norm",
                                        [ATTN_NORM_RMS] = "RMS norm"};
    const char *form = origin->plus_one ? " (1+w)" : "";
    const char *stored = info->pre_norm.name[0] != '\0' ? "" : " (not in the file)";
    bool applied = info->pre_norm.applied;

    add(list, info->head_norm.kind != ATTN_NORM_NONE, FINISHES, true, "%s%s of %s%s%s",
        kinds[info->head_norm.kind],
        origin->bare_heads && !origin->plus_one ? " without weight" : form,
        info->head_norm.whole ? "all heads" : "each head",
        info->head_norm.per_head ? " by its own weights" : "",
        info->head_norm.last ? " after the rotation" : "");
    add(list, info->value_norm.kind != ATTN_NORM_NONE, FINISHES_VALUES, true,
        "%s of values", kinds[info->value_norm.kind]);
    add(list, info->linears[ATTN_GATE].weight, DIRECT, true, "gate");
    add(list, info->out_norm.kind != ATTN_NORM_NONE, DIRECT, true, "%s of heads' outputs",
        kinds[info->out_norm.kind]);
    add(list, info->pre_norm.kind != ATTN_NORM_NONE, applied ? INDIRECT : DIRECT, applied,
        "%s%s before%s", kinds[info->pre_norm.kind], form,
        origin->bare_before ? " without weight" : stored);
}

void features_list(const attn_model_info *info, const struct features_origin *origin,
                   struct features *ret_features) {
    static const struct features_origin unknown;

    if (origin == NULL)
        origin = &unknown;
    *ret_features = (struct features){.more = false};
    add_sources(info, origin, ret_features);
    add_rows(info, origin, ret_features);
    add_scores(info, origin->num_buckets, ret_features);
    add_norms(info, origin, ret_features);
    if (ret_features->text[0] == '\0')
        strcpy(ret_features->text, "plain");
}

const char *features_queries(const attn_model_info *info) {
    static const char *const texts[2][3] = {
        {"hidden states as they are", "hidden states behind the norm",
         "hidden states before the norm"},
        {"what enters cross attention, as it is",
         "what enters cross attention, behind its norm",
         "what enters cross attention, before its norm"}};
    bool is_cross = info->kind != NULL && strcmp(info->kind, "cross") == 0;

    if (info->pre_norm.kind == ATTN_NORM_NONE)
        return texts[is_cross][0];
    return texts[is_cross][info->pre_norm.applied ? 2 : 1];
}
