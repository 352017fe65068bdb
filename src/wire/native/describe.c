/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: prints models for the routes /v1/models. */
#include "wire/native/describe.h"

#include "math/features.h"
#include "wire/json/write.h"

#include <attnd/attention.h>
#include <math.h>

static const char *bool_text(bool value) {
    return value ? "true" : "false";
}

/* Adds a key, and a text as a string; null for NULL and "". */
static void add_text_member(struct buf *body, const char *before, const char *text) {
    buf_append_text(body, before);
    if (text != NULL && text[0] != '\0')
        wire_json_add_string(body, text);
    else
        buf_append_text(body, "null");
}

/* Adds a key, and a number; null for 0, which stands for none. */
static void add_number_member(struct buf *body, const char *before, double number) {
    if (number != 0)
        buf_append_format(body, "%s%.10g", before, number);
    else
        buf_append_format(body, "%snull", before);
}

static void add_size_member(struct buf *body, const char *before, size_t size) {
    if (size != 0)
        buf_append_format(body, "%s%zu", before, size);
    else
        buf_append_format(body, "%snull", before);
}

static void print_model_names(const attn_model_info *info, struct buf *body) {
    bool is_layer = info->kind != NULL;

    add_text_member(body, "{\"name\":", info->name);
    add_text_member(body, ",\"layout\":", info->layout);
    add_text_member(body, ",\"family\":", is_layer ? info->layout : NULL);
    if (is_layer)
        buf_append_format(body, ",\"layer\":%zu", info->layer);
    else
        buf_append_text(body, ",\"layer\":null");
    add_text_member(body, ",\"kind\":", info->kind);
    buf_append_format(body, ",\"scoring\":\"%s\"",
                      info->score.kind == ATTN_ADDITIVE ? "additive"
                                                        : "scaled_dot_product");
}

/* Returns the size of a head in queries and keys. */
static size_t score_size(const attn_model_info *info) {
    return info->width.score != 0 ? info->width.score : info->width.head;
}

static void print_model_sizes(const attn_model_info *info, struct buf *body) {
    size_t kv = info->num_kv_heads != 0 ? info->num_kv_heads : info->num_heads;

    buf_append_format(body,
                      ",\"query_size\":%zu,\"key_size\":%zu,\"value_size\":%zu"
                      ",\"out_size\":%zu,\"num_heads\":%zu,\"head_size\":%zu"
                      ",\"key_head_size\":%zu,\"num_kv_heads\":%zu,\"causal\":%s",
                      info->width.query, info->width.key, info->width.value,
                      info->width.out, info->num_heads, info->width.head,
                      score_size(info), kv, bool_text(info->mask.causal));
    add_size_member(body, ",\"window\":", info->mask.window);
    add_size_member(body, ",\"chunk\":", info->mask.chunk);
    add_size_member(body, ",\"context_length\":", info->context_length);
}

/* Prints how a score is changed before the softmax. */
static void print_scores(const attn_model_info *info, struct buf *body) {
    static const char *const biases[] = {[ATTN_BIAS_NONE] = NULL,
                                         [ATTN_BIAS_ALIBI] = "alibi",
                                         [ATTN_BIAS_BUCKETS] = "buckets",
                                         [ATTN_BIAS_ALIBI_ROUNDED] = "alibi",
                                         [ATTN_BIAS_CONTENT] = "content"};
    double scale = info->score.scale;
    if (info->score.kind == ATTN_ADDITIVE)
        scale = 0; /* which is printed as null */
    else if (scale == 0)
        scale = 1 / sqrt((double)score_size(info));

    add_number_member(body, ",\"scale\":", scale);
    add_number_member(body, ",\"softcap\":", info->score.softcap);
    add_number_member(body, ",\"clip\":", info->projection.clip);
    buf_append_format(body, ",\"clip_last\":%s,\"sinks\":%s",
                      bool_text(info->projection.clip_last),
                      bool_text(info->score.sinks));
    add_text_member(body, ",\"distance_bias\":", biases[info->score.bias]);
}

static void print_rope(const attn_model_info *info, struct buf *body) {
    if (info->rotation.size == 0) {
        buf_append_text(body, ",\"rope\":null");
        return;
    }
    add_text_member(body, ",\"rope\":{\"type\":", info->rotation.type);
    buf_append_format(body, ",\"size\":%zu,\"base\":%.10g", info->rotation.size,
                      info->rotation.base);
    if (info->rotation.axes == ATTN_AXES)
        buf_append_text(body, ",\"axes\":3");
    if (info->rotation.grid > 0)
        buf_append_format(body, ",\"grid\":%zu", info->rotation.grid);
    buf_append_format(body, ",\"values\":%s}", bool_text(info->rotation.values));
}

static void print_query_factor(const attn_model_info *info, struct buf *body) {
    if (info->query_factor.length == 0)
        buf_append_text(body, ",\"query_factor\":null");
    else
        buf_append_format(
            body, ",\"query_factor\":{\"beta\":%.10g,\"length\":%zu,\"offset\":%zu}",
            info->query_factor.beta, info->query_factor.length,
            info->query_factor.offset);
}

static void print_latents(const attn_model_info *info, struct buf *body) {
    if (info->latent.query == 0 && info->latent.key == 0) {
        buf_append_text(body, ",\"latent\":null");
        return;
    }
    add_size_member(body, ",\"latent\":{\"query_size\":", info->latent.query);
    add_size_member(body, ",\"key_size\":", info->latent.key);
    buf_append_format(body, ",\"shared\":%zu,\"eps\":%.10g}", info->latent.shared,
                      info->latent.eps);
}

static const char *norm_text(attn_norm norm) {
    return norm == ATTN_NORM_RMS ? "rms" : "layer";
}

/* Adds a key, and a norm; null for none. */
static void add_norm_member(struct buf *body, const char *before, attn_norm norm,
                            double eps) {
    if (norm == ATTN_NORM_NONE)
        buf_append_format(body, "%snull", before);
    else
        buf_append_format(body, "%s{\"type\":\"%s\",\"eps\":%.10g}", before,
                          norm_text(norm), eps);
}

/* Adds the norms of projected rows, what happens to the heads' outputs, and the norm
 * before the layer. */
static void print_norms(const attn_model_info *info, struct buf *body) {
    if (info->head_norm.kind == ATTN_NORM_NONE)
        buf_append_text(body, ",\"norms\":null");
    else
        buf_append_format(
            body,
            ",\"norms\":{\"type\":\"%s\",\"over\":\"%s\",\"per_head\":%s,"
            "\"last\":%s,\"bias\":%s,\"eps\":%.10g}",
            norm_text(info->head_norm.kind), info->head_norm.whole ? "row" : "head",
            bool_text(info->head_norm.per_head), bool_text(info->head_norm.last),
            bool_text(info->head_norm.bias), info->head_norm.eps);
    add_norm_member(body, ",\"value_norm\":", info->value_norm.kind,
                    info->value_norm.eps);
    buf_append_format(body, ",\"gate\":%s", bool_text(info->linears[ATTN_GATE].weight));
    add_norm_member(body, ",\"out_norm\":", info->out_norm.kind, info->out_norm.eps);
    add_text_member(body, ",\"queries\":", features_queries(info));

    if (info->pre_norm.kind == ATTN_NORM_NONE) {
        buf_append_text(body, ",\"pre_norm\":null");
        return;
    }
    add_text_member(body, ",\"pre_norm\":{\"name\":", info->pre_norm.name);
    buf_append_format(body, ",\"type\":\"%s\",\"bias\":%s,\"eps\":%.10g,\"applied\":%s}",
                      norm_text(info->pre_norm.kind), bool_text(info->pre_norm.bias),
                      info->pre_norm.eps, bool_text(info->pre_norm.applied));
}

void wire_native_print_model(const attn_model_info *info, struct buf *body) {
    bool bias = false;

    for (attn_linear i = 0; i < ATTN_NUM_LINEARS; i++)
        bias = bias || info->linears[i].bias;
    print_model_names(info, body);
    print_model_sizes(info, body);
    print_scores(info, body);
    print_latents(info, body);
    print_rope(info, body);
    print_query_factor(info, body);
    print_norms(info, body);
    buf_append_format(
        body,
        ",\"output_projection\":%s,\"bias\":%s,\"engine\":\"%s\",\"cpu\":\"%s\","
        "\"precision\":\"%s\",\"parameters\":%zu,\"bytes\":%zu,\"memory\":%zu",
        bool_text(info->linears[ATTN_OUTPUT].weight), bool_text(bias), info->engine.name,
        info->engine.cpu, info->engine.precision, info->footprint.parameters,
        info->footprint.bytes, info->footprint.memory);
    if (info->loaded > 0)
        buf_append_format(body, ",\"fingerprint\":\"%s\",\"loaded\":%lld",
                          info->fingerprint, info->loaded);
    buf_append_text(body, "}");
}

void wire_native_print_models(const attn_model *const *models, size_t num_models,
                              struct buf *body) {
    buf_append_text(body, "{\"models\":[");
    for (size_t i = 0; i < num_models; i++) {
        buf_append_text(body, i > 0 ? "," : "");
        wire_native_print_model(attn_model_get_info(models[i]), body);
    }
    buf_append_text(body, "]}");
}
