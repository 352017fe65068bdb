/* SPDX-License-Identifier: Apache-2.0 */
/* describe.c: prints models as JSON for /v1/models. */
#include "wire/native/describe.h"

#include "wire/json/write.h"

static const char *bool_text(bool value) {
    return value ? "true" : "false";
}

static attn_status print_model_names(const attn_model_info *info, struct buf *body) {
    attn_status status = buf_append_text(body, "{\"name\":");
    if (status == ATTN_OK)
        status = wire_json_add_string(body, info->name);
    if (status == ATTN_OK)
        status = buf_append_text(body, ",\"layout\":");
    if (status == ATTN_OK)
        status = wire_json_add_string(body, info->layout);
    if (status == ATTN_OK)
        status = wire_json_add_format(
            body, ",\"scoring\":\"%s\"",
            info->scoring == ATTN_ADDITIVE ? "additive" : "scaled_dot_product");
    return status;
}

static attn_status print_model_sizes(const attn_model_info *info, struct buf *body) {
    attn_status status =
        wire_json_add_format(body,
                             ",\"query_size\":%zu,\"key_size\":%zu,\"value_size\":%zu"
                             ",\"out_size\":%zu,\"num_heads\":%zu,\"head_size\":%zu",
                             info->query_size, info->key_size, info->value_size,
                             info->out_size, info->num_heads, info->head_size);
    if (status == ATTN_OK)
        status = wire_json_add_format(
            body, ",\"causal\":%s,\"context_length\":", bool_text(info->causal));
    if (status != ATTN_OK)
        return status;

    if (info->context_length == 0)
        return buf_append_text(body, "null");
    return wire_json_add_format(body, "%zu", info->context_length);
}

attn_status wire_native_print_model(const attn_model_info *info, struct buf *body) {
    attn_status status = print_model_names(info, body);
    if (status == ATTN_OK)
        status = print_model_sizes(info, body);
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
