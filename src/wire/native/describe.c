/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: prints models as JSON for /v1/models. */
#include "wire/native/describe.h"

#include "wire/json/write.h"

#include <math.h>

static const char *bool_text(bool value) {
    return value ? "true" : "false";
}

/* Adds a key, and a text as a string; null for NULL and "". */
static attn_status add_text_member(struct buf *body, const char *before,
                                   const char *text) {
    attn_status status = buf_append_text(body, before);
    if (status != ATTN_OK)
        return status;
    return text != NULL && text[0] != '\0' ? wire_json_add_string(body, text)
                                           : buf_append_text(body, "null");
}

/* Adds a key, and a number; null for 0, which stands for none. */
static attn_status add_number_member(struct buf *body, const char *before,
                                     double number) {
    return number != 0 ? wire_json_add_format(body, "%s%.10g", before, number)
                       : wire_json_add_format(body, "%snull", before);
}

static attn_status add_size_member(struct buf *body, const char *before, size_t size) {
    return size != 0 ? wire_json_add_format(body, "%s%zu", before, size)
                     : wire_json_add_format(body, "%snull", before);
}

static attn_status print_model_names(const attn_model_info *info, struct buf *body) {
    bool is_layer = info->kind != NULL;
    attn_status status = add_text_member(body, "{\"name\":", info->name);
    if (status == ATTN_OK)
        status = add_text_member(body, ",\"layout\":", info->layout);
    if (status == ATTN_OK)
        status = add_text_member(body, ",\"family\":", is_layer ? info->layout : NULL);
    if (status == ATTN_OK)
        status = is_layer ? wire_json_add_format(body, ",\"layer\":%zu", info->layer)
                          : buf_append_text(body, ",\"layer\":null");
    if (status == ATTN_OK)
        status = add_text_member(body, ",\"kind\":", info->kind);
    if (status == ATTN_OK)
        status = wire_json_add_format(
            body, ",\"scoring\":\"%s\"",
            info->scoring == ATTN_ADDITIVE ? "additive" : "scaled_dot_product");
    return status;
}

static attn_status print_model_sizes(const attn_model_info *info, struct buf *body) {
    size_t kv = info->num_kv_heads != 0 ? info->num_kv_heads : info->num_heads;
    attn_status status =
        wire_json_add_format(body,
                             ",\"query_size\":%zu,\"key_size\":%zu,\"value_size\":%zu"
                             ",\"out_size\":%zu,\"num_heads\":%zu,\"head_size\":%zu",
                             info->query_size, info->key_size, info->value_size,
                             info->out_size, info->num_heads, info->head_size);
    if (status == ATTN_OK)
        status = wire_json_add_format(body, ",\"num_kv_heads\":%zu,\"causal\":%s", kv,
                                      bool_text(info->causal));
    if (status == ATTN_OK)
        status = add_size_member(body, ",\"window\":", info->window);
    if (status == ATTN_OK)
        status = add_size_member(body, ",\"context_length\":", info->context_length);
    return status;
}

/* What becomes of a score before the softmax. */
static attn_status print_scores(const attn_model_info *info, struct buf *body) {
    static const char *const biases[] = {[ATTN_BIAS_NONE] = NULL,
                                         [ATTN_BIAS_ALIBI] = "alibi",
                                         [ATTN_BIAS_BUCKETS] = "buckets",
                                         [ATTN_BIAS_ALIBI_ROUNDED] = "alibi"};
    double scale = info->scale;
    if (info->scoring == ATTN_ADDITIVE)
        scale = 0; /* which is printed as null */
    else if (scale == 0)
        scale = 1 / sqrt((double)info->head_size);

    attn_status status = add_number_member(body, ",\"scale\":", scale);
    if (status == ATTN_OK)
        status = add_number_member(body, ",\"softcap\":", info->softcap);
    if (status == ATTN_OK)
        status = add_number_member(body, ",\"clip\":", info->clip);
    if (status == ATTN_OK)
        status = wire_json_add_format(body, ",\"sinks\":%s", bool_text(info->sinks));
    if (status == ATTN_OK)
        status = add_text_member(body, ",\"distance_bias\":", biases[info->bias]);
    return status;
}

static attn_status print_rope(const attn_model_info *info, struct buf *body) {
    if (info->rope_size == 0)
        return buf_append_text(body, ",\"rope\":null");
    attn_status status = add_text_member(body, ",\"rope\":{\"type\":", info->rope_type);
    return status == ATTN_OK ? wire_json_add_format(body, ",\"size\":%zu,\"base\":%.10g}",
                                                    info->rope_size, info->rope_base)
                             : status;
}

static const char *norm_text(attn_norm norm) {
    return norm == ATTN_NORM_RMS ? "rms" : "layer";
}

/* Adds the norms of projected queries and keys, and the norm before the layer. */
static attn_status print_norms(const attn_model_info *info, struct buf *body) {
    attn_status status;
    if (info->head_norm == ATTN_NORM_NONE)
        status = buf_append_text(body, ",\"norms\":null");
    else
        status = wire_json_add_format(
            body,
            ",\"norms\":{\"type\":\"%s\",\"over\":\"%s\",\"bias\":%s,\"eps\":%.10g}",
            norm_text(info->head_norm), info->head_norm_whole ? "row" : "head",
            bool_text(info->head_norm_bias), info->head_norm_eps);
    if (status != ATTN_OK)
        return status;

    if (info->pre_norm == ATTN_NORM_NONE)
        return buf_append_text(body, ",\"pre_norm\":null");
    status = add_text_member(body, ",\"pre_norm\":{\"name\":", info->pre_norm_name);
    return status == ATTN_OK
               ? wire_json_add_format(
                     body, ",\"type\":\"%s\",\"bias\":%s,\"eps\":%.10g,\"applied\":%s}",
                     norm_text(info->pre_norm), bool_text(info->pre_norm_bias),
                     info->pre_norm_eps, bool_text(info->pre_norm_applied))
               : status;
}

attn_status wire_native_print_model(const attn_model_info *info, struct buf *body) {
    static attn_status (*const parts[])(const attn_model_info *info, struct buf *body) = {
        print_model_names, print_model_sizes, print_scores, print_rope, print_norms};
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == ATTN_OK; i++)
        status = parts[i](info, body);
    if (status != ATTN_OK)
        return status;

    bool bias =
        info->query_bias || info->key_bias || info->value_bias || info->output_bias;
    return wire_json_add_format(
        body,
        ",\"output_projection\":%s,\"bias\":%s,\"engine\":\"%s\",\"cpu\":\"%s\","
        "\"precision\":\"%s\",\"parameters\":%zu,\"bytes\":%zu,\"memory\":%zu}",
        bool_text(info->output_projection), bool_text(bias), info->engine, info->cpu,
        info->precision, info->parameters, info->bytes, info->memory);
}

attn_status wire_native_print_models(const attn_model *const *models, size_t num_models,
                                     struct buf *body) {
    attn_status status = buf_append_text(body, "{\"models\":[");
    for (size_t i = 0; i < num_models && status == ATTN_OK; i++) {
        if (i > 0)
            status = buf_append_text(body, ",");
        if (status == ATTN_OK)
            status = wire_native_print_model(attn_model_get_info(models[i]), body);
    }
    return status == ATTN_OK ? buf_append_text(body, "]}") : status;
}
