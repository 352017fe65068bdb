/* SPDX-License-Identifier: Apache-2.0 */
/* hidden.c: reads hidden states, [tokens, layers, width] or [layers, tokens, width]. */
#include "cli/hidden.h"

#include "base/error.h"
#include "weights/families/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct hidden {
    struct safetensors *file;
    const struct safetensors_tensor *states;    /* of rank 3 */
    const struct safetensors_tensor *token_ids; /* of the prompt; NULL: not in the file */
    bool tokens_first;
    size_t num_tokens, width;
    size_t num_ids, *ids;
};

/* --- the file --- */

/* Reads "0,8,16". */
static attn_status read_ids(const char *text, struct hidden *hidden,
                            attn_error *ret_error) {
    hidden->ids = calloc(strlen(text) / 2 + 1, sizeof *hidden->ids);
    if (hidden->ids == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");

    for (const char *at = text;; at++) {
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || digits > 9 || (at[digits] != ',' && at[digits] != '\0'))
            return error_set(ret_error, ATTN_E_VALUE,
                             "--layers: '%.40s' is not a list of ids, such as 0,8,16",
                             text);
        hidden->ids[hidden->num_ids++] = strtoul(at, NULL, 10);
        at += digits;
        if (*at == '\0')
            return ATTN_OK;
    }
}

/* Decides which axis counts layers: the one that is as long as the list of ids, and that
 * of vLLM where both are. */
static attn_status find_axes(struct hidden *hidden, attn_error *ret_error) {
    const size_t *shape = hidden->states->shape;

    if (shape[1] != hidden->num_ids && shape[0] != hidden->num_ids)
        return error_set(ret_error, ATTN_E_SHAPE,
                         "hidden_states are [%zu, %zu, %zu], but --layers has %zu id%s; "
                         "list one for each layer, in the order of the file",
                         shape[0], shape[1], shape[2], hidden->num_ids,
                         plural_of(hidden->num_ids));
    hidden->tokens_first = shape[1] == hidden->num_ids;
    hidden->num_tokens = shape[hidden->tokens_first ? 0 : 1];
    hidden->width = shape[2];
    if (hidden->token_ids != NULL && hidden->token_ids->elements > hidden->num_tokens)
        return error_set(ret_error, ATTN_E_SHAPE,
                         "hidden_states have %zu rows, but there are %zu token_ids: the "
                         "first part of the prompt came from the prefix cache; start "
                         "vllm with --no-enable-prefix-caching",
                         hidden->num_tokens, hidden->token_ids->elements);
    if (shape[0] == shape[1])
        fprintf(stderr,
                "attnd: hidden_states are [%zu, %zu, %zu], read as vLLM writes them: "
                "[tokens, layers, width]\n",
                shape[0], shape[1], shape[2]);
    return ATTN_OK;
}

/* Checks the tensor, and what the options say of it. */
static attn_status check_states(const struct config_heads *options, struct hidden *hidden,
                                attn_error *ret_error) {
    if (hidden->states->rank != 3)
        return error_set(ret_error, ATTN_E_SHAPE,
                         "hidden_states have %zu axes; save [tokens, layers, width]",
                         hidden->states->rank);
    if (options->layers == NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--layers is missing: hidden_states are [%zu, %zu, %zu], and "
                         "the file does not say of which layers; give their ids, as in "
                         "--layers 0,8,16",
                         hidden->states->shape[0], hidden->states->shape[1],
                         hidden->states->shape[2]);
    attn_status status = safetensors_check_dtype(hidden->states, ret_error);
    if (status == ATTN_OK)
        status = read_ids(options->layers, hidden, ret_error);
    return status == ATTN_OK ? find_axes(hidden, ret_error) : status;
}

attn_status hidden_open(const struct config_heads *options, struct hidden **ret_hidden,
                        attn_error *ret_error) {
    struct hidden *hidden = calloc(1, sizeof *hidden);

    *ret_hidden = NULL;
    if (hidden == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");

    /* A pipe is not opened: that would end its writer before the requests are read. */
    struct stat data;
    attn_error error;
    attn_status status = ATTN_OK;
    bool may_be = options->layers != NULL ||
                  (stat(options->data, &data) == 0 && S_ISREG(data.st_mode));
    if (may_be)
        status = safetensors_open_file(options->data, &hidden->file, &error);
    if (may_be && status == ATTN_OK) {
        const struct tensor_view all = tensor_view_of(hidden->file);
        hidden->states = tensor_view_find(&all, "hidden_states");
        hidden->token_ids = tensor_view_find(&all, "token_ids");
    }
    if (hidden->states != NULL)
        status = check_states(options, hidden, &error);
    else if (options->layers == NULL)
        status = ATTN_OK; /* it has requests, or their reader says what it is */
    else if (status == ATTN_OK)
        status = error_set(&error, ATTN_E_VALUE,
                           "it has no hidden_states, whose layers --layers lists");
    if (status == ATTN_OK && hidden->states != NULL) {
        *ret_hidden = hidden;
        return ATTN_OK;
    }
    hidden_close(hidden);
    if (status != ATTN_OK)
        error_set(ret_error, status, "%.200s: %s", options->data, error.text);
    return status;
}

void hidden_close(struct hidden *hidden) {
    if (hidden == NULL)
        return;
    safetensors_close(hidden->file);
    free(hidden->ids);
    free(hidden);
}

/* --- its layers --- */

/* Returns the number of the layer that state `id` enters, or `count`. */
static size_t find_fed_layer(const struct layer *layers, size_t count, size_t id) {
    char text[24], part[24];
    size_t i = 0;

    snprintf(part, sizeof part, "%zu", id);
    snprintf(text, sizeof text, "text.%zu", id);
    while (i < count && strcmp(layers[i].part, part) != 0 &&
           strcmp(layers[i].part, text) != 0)
        i++;
    return i;
}

attn_status hidden_find_layers(const struct hidden *hidden, const struct folder *folder,
                               size_t **ret_layers, size_t *ret_count, bool *ret_norm,
                               attn_error *ret_error) {
    size_t count = 0, *found = calloc(hidden->num_ids, sizeof *found);
    const struct layer *layers = folder_get_layers(folder, &count);

    if (found == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    *ret_norm = false;
    for (size_t i = 0; i < hidden->num_ids; i++) {
        size_t id = hidden->ids[i], at = find_fed_layer(layers, count, id);
        attn_status status = ATTN_OK;
        if (at == count)
            status =
                error_set(ret_error, ATTN_E_VALUE,
                          "--layers: state %zu enters no layer of the folder, whose last "
                          "one is %s; the state after the last layer, whose id is "
                          "num_hidden_layers, enters none",
                          id, layers[count - 1].part);
        else if (layers[at].borrows) /* its keys are made of another state */
            status =
                error_set(ret_error, ATTN_E_UNSUPPORTED,
                          "--layers: layer %s takes the keys of layer %zu, which state "
                          "%zu does not make; save the states of other layers, or send "
                          "requests with keys",
                          layers[at].part, layers[at].lender, id);
        if (status != ATTN_OK) {
            free(found);
            return status;
        }
        found[i] = at;
        *ret_norm = *ret_norm || layers[at].info.pre_norm.kind != ATTN_NORM_NONE;
    }
    *ret_layers = found;
    *ret_count = hidden->num_ids;
    return ATTN_OK;
}

/* --- its rows --- */

/* Reads the rows of state `i`, [num_tokens, width]. */
static attn_status read_rows(const struct hidden *hidden, size_t i, float *rows,
                             attn_error *ret_error) {
    size_t width = hidden->width, tokens = hidden->num_tokens;
    attn_status status = ATTN_OK;

    if (!hidden->tokens_first)
        return safetensors_read(hidden->states, i * tokens * width, tokens * width, rows,
                                ret_error);
    for (size_t t = 0; t < tokens && status == ATTN_OK; t++)
        status = safetensors_read(hidden->states, (t * hidden->num_ids + i) * width,
                                  width, rows + t * width, ret_error);
    return status;
}

attn_status hidden_read(const struct hidden *hidden, size_t i,
                        const struct config *config, const attn_model *model,
                        request_use *use, void *context, attn_error *ret_error) {
    const attn_model_info *info = attn_model_get_info(model);
    size_t count = hidden->num_tokens * hidden->width; /* of a tensor in a file */
    struct request_memory memory;
    attn_error error = {.status = ATTN_OK};

    request_memory_init(&memory, config);
    if (hidden->width != info->width.query)
        error_set(&error, ATTN_E_SHAPE,
                  "hidden_states are %zu wide, but the layer takes rows of %zu; "
                  "name the folder of the model that they are of",
                  hidden->width, info->width.query);
    float *rows = error.status == ATTN_OK
                      ? request_alloc(&memory, count, sizeof *rows, &error)
                      : NULL;
    attn_status status = rows != NULL ? read_rows(hidden, i, rows, &error) : error.status;
    attn_request batch = {
        .num_sequences = 1,
        .query_lens = &hidden->num_tokens,
        .key_lens = &hidden->num_tokens,
        .queries = rows,
        .keys = rows,
        .values = rows,
        .causal = info->mask.causal,
        .window = info->mask.window,
        .chunk = info->mask.chunk,
    };
    if (status == ATTN_OK)
        status = use(context, &batch, &memory, &error);
    arena_deinit(&memory.arena);
    if (status != ATTN_OK)
        error_set(ret_error, status, "%.200s: %s", config->heads.data, error.text);
    return status;
}
