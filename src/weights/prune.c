/* SPDX-License-Identifier: Apache-2.0 */
/* prune.c: copies the rows and columns of the heads that are kept. */
#include "weights/prune.h"

#include "base/error.h"
#include "math/model.h"
#include "safetensors/write.h"
#include "weights/layout.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PRUNED_LAYOUT "d2l"
#define TENSORS_MAX   11 /* weights and biases of 4 linears, 3 of additive scoring */

/* Copies the rows of head `head` of a weight [H*D, width] to those of head `to`; a bias
 * is 1 wide. Does nothing where there is none. */
static void copy_head_rows(const float *weight, size_t head, float *ret_weight, size_t to,
                           size_t head_size, size_t width) {
    size_t count = head_size * width;
    if (weight != NULL)
        memcpy(ret_weight + to * count, weight + head * count, count * sizeof *weight);
}

/* Copies the columns of head `head` of the output projection [out_size, H*D] to those of
 * head `to`. Where there is none, they are those of the identity matrix. */
static void copy_head_columns(const attn_model *model, size_t head, attn_model *pruned,
                              size_t to) {
    size_t head_size = model->info.head_size;
    size_t columns = model->info.num_heads * head_size;
    size_t kept = pruned->info.num_heads * head_size;

    for (size_t row = 0; row < pruned->info.out_size; row++) {
        float *out = pruned->output_weight + row * kept + to * head_size;
        for (size_t d = 0; d < head_size; d++) {
            size_t column = head * head_size + d;
            if (model->output_weight != NULL)
                out[d] = model->output_weight[row * columns + column];
            else
                out[d] = row == column ? 1 : 0;
        }
    }
}

/* Copies what head `head` alone has; it becomes head `to`. */
static void copy_head(const attn_model *model, size_t head, attn_model *pruned,
                      size_t to) {
    const attn_model_info *info = &model->info;
    size_t size = info->head_size;

    copy_head_rows(model->query_weight, head, pruned->query_weight, to, size,
                   info->query_size);
    copy_head_rows(model->query_bias, head, pruned->query_bias, to, size, 1);
    copy_head_rows(model->key_weight, head, pruned->key_weight, to, size, info->key_size);
    copy_head_rows(model->key_bias, head, pruned->key_bias, to, size, 1);
    copy_head_rows(model->value_weight, head, pruned->value_weight, to, size,
                   info->value_size);
    copy_head_rows(model->value_bias, head, pruned->value_bias, to, size, 1);
    copy_head_columns(model, head, pruned, to);
}

/* Copies an array that all heads share; NULL is accepted and copies nothing. */
static void copy_shared(const float *values, size_t count, float *ret_values) {
    if (values != NULL)
        memcpy(ret_values, values, count * sizeof *values);
}

/* Copies what does not belong to a head. */
static void copy_common(const attn_model *model, attn_model *pruned) {
    const attn_model_info *info = &model->info;
    size_t additive = info->additive_size, size = info->head_size;

    copy_shared(model->output_bias, info->out_size, pruned->output_bias);
    copy_shared(model->additive_query, additive * size, pruned->additive_query);
    copy_shared(model->additive_key, additive * size, pruned->additive_key);
    copy_shared(model->additive_score, additive, pruned->additive_score);
}

/* Returns what a layer has that no layer of PRUNED_LAYOUT has; NULL: nothing. */
static const char *find_extra(const attn_model_info *info) {
    double plain = 1 / sqrt((double)info->head_size);
    const struct {
        bool present;
        const char *name;
    } extras[] = {
        {info->num_kv_heads != info->num_heads, "heads that share a key head"},
        {fabs(info->scale - plain) > 1e-12 * plain, "a scale of its own"},
        {info->window > 0, "a window"},
        {info->softcap > 0, "a softcap"},
        {info->clip > 0, "a clip"},
        {info->sinks, "sinks"},
        {info->bias != ATTN_BIAS_NONE, "a bias by distance"},
        {info->head_norm != ATTN_NORM_NONE, "norms of queries and keys"},
        {info->rope_size > 0, "rotary positions"},
        {info->pre_norm_applied, "a norm before it (pre_norm=true)"},
    };

    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        if (extras[i].present)
            return extras[i].name;
    }
    return NULL;
}

attn_status prune_check(const attn_model_info *info, attn_error *ret_error) {
    const char *extra = find_extra(info);

    if (extra == NULL)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_UNSUPPORTED,
                     "the layer has %s, which a file of layout " PRUNED_LAYOUT
                     " cannot hold; serve the whole layer, and send head_mask",
                     extra);
}

attn_status prune_create_model(const attn_model *model, const bool *left_out,
                               attn_model **ret_model, attn_error *ret_error) {
    attn_model_info info = model->info;
    const size_t num_heads = info.num_heads;
    attn_model *pruned;

    attn_status status = prune_check(&info, ret_error);
    if (status != ATTN_OK)
        return status;
    info.layout = PRUNED_LAYOUT;
    info.output_projection = true;
    for (size_t head = 0; head < num_heads; head++)
        info.num_heads -= left_out[head] ? 1 : 0;
    info.num_kv_heads = info.num_heads;
    status = attn_model_create(&info, &pruned);
    if (status != ATTN_OK)
        return error_set(ret_error, status, "cannot create the pruned model: %s",
                         attn_status_text(status));

    for (size_t head = 0, to = 0; head < num_heads; head++) {
        if (!left_out[head])
            copy_head(model, head, pruned, to++);
    }
    copy_common(model, pruned);
    *ret_model = pruned;
    return ATTN_OK;
}

/* The tensors of a file that is to be written. */
struct tensor_list {
    struct safetensors_source tensors[TENSORS_MAX];
    size_t count;
};

/* Adds a tensor; NULL is accepted and adds nothing. */
static void list_tensor(struct tensor_list *list, const char *name, const float *values,
                        size_t rows, size_t columns) {
    if (values != NULL)
        list->tensors[list->count++] =
            (struct safetensors_source){name, values, rows, columns};
}

/* Adds the tensors of a linear map [rows, columns]. */
static void list_linear(struct tensor_list *list, enum linear_id id, const float *weight,
                        const float *bias, size_t rows, size_t columns) {
    const struct linear_names *names = &layout_get(PRUNED_LAYOUT)->linears[id];
    list_tensor(list, names->weight, weight, rows, columns);
    list_tensor(list, names->bias, bias, rows, 0);
}

attn_status prune_write_file(const attn_model *model, const char *path,
                             attn_error *ret_error) {
    const attn_model_info *info = &model->info;
    size_t hidden = info->num_heads * info->head_size;
    struct tensor_list list = {.count = 0};

    list_linear(&list, LINEAR_QUERY, model->query_weight, model->query_bias, hidden,
                info->query_size);
    list_linear(&list, LINEAR_KEY, model->key_weight, model->key_bias, hidden,
                info->key_size);
    list_linear(&list, LINEAR_VALUE, model->value_weight, model->value_bias, hidden,
                info->value_size);
    list_linear(&list, LINEAR_OUTPUT, model->output_weight, model->output_bias,
                info->out_size, hidden);
    list_tensor(&list, LAYOUT_ADDITIVE_QUERY, model->additive_query, info->additive_size,
                info->head_size);
    list_tensor(&list, LAYOUT_ADDITIVE_KEY, model->additive_key, info->additive_size,
                info->head_size);
    list_tensor(&list, LAYOUT_ADDITIVE_SCORE, model->additive_score, info->additive_size,
                0);

    char num_heads[24], context_length[24];
    snprintf(num_heads, sizeof num_heads, "%zu", info->num_heads);
    snprintf(context_length, sizeof context_length, "%zu", info->context_length);
    const struct safetensors_text metadata[] = {
        {"num_heads", num_heads},
        {"causal", info->causal ? "true" : "false"},
        {"context_length", context_length},
    };
    size_t num_metadata = info->context_length > 0 ? 3 : 2; /* 0: no limit */
    return safetensors_write_file(path, list.tensors, list.count, metadata, num_metadata,
                                  ret_error);
}
