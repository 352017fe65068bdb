/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: prints models as JSON for /v1/models. */
#include "wire/native/describe.h"

#include "wire/json/write.h"

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
                      info->scoring == ATTN_ADDITIVE ? "additive" : "scaled_dot_product");
}

static void print_model_sizes(const attn_model_info *info, struct buf *body) {
    size_t kv = info->num_kv_heads != 0 ? info->num_kv_heads : info->num_heads;

    buf_append_format(body,
                      ",\"query_size\":%zu,\"key_size\":%zu,\"value_size\":%zu"
                      ",\"out_size\":%zu,\"num_heads\":%zu,\"head_size\":%zu"
                      ",\"num_kv_heads\":%zu,\"causal\":%s",
                      info->query_size, info->key_size, info->value_size, info->out_size,
                      info->num_heads, info->head_size, kv, bool_text(info->causal));
    add_size_member(body, ",\"window\":", info->window);
    add_size_member(body, ",\"context_length\":", info->context_length);
}

/* What becomes of a score before the softmax. */
static void print_scores(const attn_model_info *info, struct buf *body) {
    static const char *const biases[] = {[ATTN_BIAS_NONE] = NULL,
                                         [ATTN_BIAS_ALIBI] = "alibi",
                                         [ATTN_BIAS_BUCKETS] = "buckets",
                                         [ATTN_BIAS_ALIBI_ROUNDED] = "alibi"};
    double scale = info->scale;
    if (info->scoring == ATTN_ADDITIVE)
        scale = 0; /* which is printed as null */
    else if (scale == 0)
        scale = 1 / sqrt((double)info->head_size);

    add_number_member(body, ",\"scale\":", scale);
    add_number_member(body, ",\"softcap\":", info->softcap);
    add_number_member(body, ",\"clip\":", info->clip);
    buf_append_format(body, ",\"sinks\":%s", bool_text(info->sinks));
    add_text_member(body, ",\"distance_bias\":", biases[info->bias]);
}

static void print_rope(const attn_model_info *info, struct buf *body) {
    if (info->rope_size == 0) {
        buf_append_text(body, ",\"rope\":null");
        return;
    }
    add_text_member(body, ",\"rope\":{\"type\":", info->rope_type);
    buf_append_format(body, ",\"size\":%zu,\"base\":%.10g}", info->rope_size,
                      info->rope_base);
}

static const char *norm_text(attn_norm norm) {
    return norm == ATTN_NORM_RMS ? "rms" : "layer";
}

/* Adds the norms of projected queries and keys, and the norm before the layer. */
static void print_norms(const attn_model_info *info, struct buf *body) {
    if (info->head_norm == ATTN_NORM_NONE)
        buf_append_text(body, ",\"norms\":null");
    else
        buf_append_format(
            body,
            ",\"norms\":{\"type\":\"%s\",\"over\":\"%s\",\"bias\":%s,\"eps\":%.10g}",
            norm_text(info->head_norm), info->head_norm_whole ? "row" : "head",
            bool_text(info->head_norm_bias), info->head_norm_eps);

    if (info->pre_norm == ATTN_NORM_NONE) {
        buf_append_text(body, ",\"pre_norm\":null");
        return;
    }
    add_text_member(body, ",\"pre_norm\":{\"name\":", info->pre_norm_name);
    buf_append_format(body, ",\"type\":\"%s\",\"bias\":%s,\"eps\":%.10g,\"applied\":%s}",
                      norm_text(info->pre_norm), bool_text(info->pre_norm_bias),
                      info->pre_norm_eps, bool_text(info->pre_norm_applied));
}

void wire_native_print_model(const attn_model_info *info, struct buf *body) {
    bool bias =
        info->query_bias || info->key_bias || info->value_bias || info->output_bias;

    print_model_names(info, body);
    print_model_sizes(info, body);
    print_scores(info, body);
    print_rope(info, body);
    print_norms(info, body);
    buf_append_format(
        body,
        ",\"output_projection\":%s,\"bias\":%s,\"engine\":\"%s\",\"cpu\":\"%s\","
        "\"precision\":\"%s\",\"parameters\":%zu,\"bytes\":%zu,\"memory\":%zu}",
        bool_text(info->output_projection), bool_text(bias), info->engine, info->cpu,
        info->precision, info->parameters, info->bytes, info->memory);
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
