/* SPDX-License-Identifier: Apache-2.0 */
/* prune.c: copies the rows and columns of the heads that are kept. */
#include "weights/prune.h"

#include "base/error.h"
#include "math/features.h"
#include "math/model.h"
#include "safetensors/write.h"
#include "weights/layout_table.h"

#include <stdio.h>
#include <string.h>

#define PRUNED_LAYOUT "d2l"

/* The arrays that a layer of PRUNED_LAYOUT may have, and what they are called. */
static const struct {
    const char *name;
    size_t array; /* of enum model_array_id */
    bool is_vector;
} tensors[] = {
    {"W_q.weight", MODEL_WEIGHT(ATTN_QUERY), false},
    {"W_q.bias", MODEL_BIAS(ATTN_QUERY), true},
    {"W_k.weight", MODEL_WEIGHT(ATTN_KEY), false},
    {"W_k.bias", MODEL_BIAS(ATTN_KEY), true},
    {"W_v.weight", MODEL_WEIGHT(ATTN_VALUE), false},
    {"W_v.bias", MODEL_BIAS(ATTN_VALUE), true},
    {"W_o.weight", MODEL_WEIGHT(ATTN_OUTPUT), false},
    {"W_o.bias", MODEL_BIAS(ATTN_OUTPUT), true},
    {LAYOUT_ADDITIVE_QUERY, MODEL_ADDITIVE_QUERY, false},
    {LAYOUT_ADDITIVE_KEY, MODEL_ADDITIVE_KEY, false},
    {LAYOUT_ADDITIVE_SCORE, MODEL_ADDITIVE_SCORE, true},
};

#define NUM_TENSORS (sizeof tensors / sizeof tensors[0])

/* Copies the columns of head `head` of the output projection [out_size, H*D] to those of
 * head `to`. Where there is none, they are those of the identity matrix. */
static void copy_head_columns(const attn_model *model, size_t head, attn_model *pruned,
                              size_t to) {
    size_t head_size = model->info.width.head;
    size_t columns = model->info.num_heads * head_size;
    size_t kept = pruned->info.num_heads * head_size;

    for (size_t row = 0; row < pruned->info.width.out; row++) {
        float *out = model_weight(pruned, ATTN_OUTPUT) + row * kept + to * head_size;
        for (size_t d = 0; d < head_size; d++) {
            size_t column = head * head_size + d;
            if (model_weight(model, ATTN_OUTPUT) != NULL)
                out[d] = model_weight(model, ATTN_OUTPUT)[row * columns + column];
            else
                out[d] = row == column ? 1 : 0;
        }
    }
}

/* Copies the rows of the heads that are kept, [H*D, columns], or all rows of an array
 * that the heads share. */
static void copy_kept_rows(const struct model_array *from, const struct model_array *to,
                           const attn_model_info *info, const bool *left_out) {
    size_t num_parts = from->rows == to->rows ? 1 : info->num_heads;
    float *out = to->numbers;

    for (size_t part = 0; part < num_parts; part++) {
        size_t count = from->rows / num_parts * from->columns;
        if (num_parts > 1 && left_out[part])
            continue;
        memcpy(out, from->numbers + part * count, count * sizeof *out);
        out += count;
    }
}

attn_status prune_check(const attn_model_info *info, attn_error *ret_error) {
    struct features features;

    features_list(info, NULL, &features);
    if (features.extra == NULL)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_UNSUPPORTED,
                     "the layer has %s, which a file of layout " PRUNED_LAYOUT
                     " cannot hold; serve the whole layer, and send head_mask",
                     features.extra);
}

attn_status prune_create_model(const attn_model *model, const bool *left_out,
                               attn_model **ret_model, attn_error *ret_error) {
    attn_model *pruned;
    attn_model_info info = model->info;

    info.layout = PRUNED_LAYOUT;
    info.linears[ATTN_OUTPUT].weight = true;
    for (size_t head = 0; head < model->info.num_heads; head++)
        info.num_heads -= left_out[head] ? 1 : 0;
    info.num_kv_heads = info.num_heads;
    attn_status status = attn_model_create(&info, &pruned);
    if (status != ATTN_OK)
        return error_set(ret_error, status, "cannot create the pruned model: %s",
                         attn_status_text(status));

    for (size_t i = 0; i < NUM_TENSORS; i++) {
        const struct model_array *from = &model->arrays[tensors[i].array];
        if (from->rows > 0 && tensors[i].array != MODEL_WEIGHT(ATTN_OUTPUT))
            copy_kept_rows(from, &pruned->arrays[tensors[i].array], &model->info,
                           left_out);
    }
    for (size_t head = 0, kept = 0; head < model->info.num_heads; head++) {
        if (!left_out[head])
            copy_head_columns(model, head, pruned, kept++);
    }
    *ret_model = pruned;
    return ATTN_OK;
}

attn_status prune_write_file(const attn_model *model, const char *path,
                             attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    struct safetensors_source sources[NUM_TENSORS];
    size_t count = 0;

    for (size_t i = 0; i < NUM_TENSORS; i++) {
        const struct model_array *array = &model->arrays[tensors[i].array];
        if (array->rows > 0)
            sources[count++] =
                (struct safetensors_source){tensors[i].name, array->numbers, array->rows,
                                            tensors[i].is_vector ? 0 : array->columns};
    }

    char num_heads[24], context_length[24];
    snprintf(num_heads, sizeof num_heads, "%zu", info->num_heads);
    snprintf(context_length, sizeof context_length, "%zu", info->context_length);
    const struct safetensors_text metadata[] = {
        {"num_heads", num_heads},
        {"causal", info->mask.causal ? "true" : "false"},
        {"context_length", context_length},
    };
    size_t num_metadata = info->context_length > 0 ? 3 : 2; /* 0: no limit */
    return safetensors_write_file(path, sources, count, metadata, num_metadata,
                                  ret_error);
}
