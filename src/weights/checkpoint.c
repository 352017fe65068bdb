/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.c: combines the options of a model with those in the file, and loads or
 * describes the file. */
#include "weights/checkpoint.h"

#include "base/error.h"
#include "math/model.h"
#include "weights/layer/make.h"
#include "weights/layout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PATH_SHOWN_MAX 120 /* bytes of a path that an error shows: its end */

attn_status checkpoint_check_name(const char *name, attn_error *ret_error) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t size = strlen(name);
    if (size >= 1 && size <= ATTN_NAME_MAX && strspn(name, allowed) == size)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "model name '%.80s' is not 1 to %d of the characters "
                     "A-Z a-z 0-9 . _ -",
                     name, ATTN_NAME_MAX);
}

const char *checkpoint_find_note(const attn_model_info *info) {
    bool of_file = info->kind == NULL; /* a layer of a folder has a kind */
    bool plain = info->num_kv_heads == info->num_heads || info->rotation.size > 0;
    return !of_file || plain ? NULL
                             : "served without rotation; Llama 3 and Qwen3 rotate: "
                               "rope_theta=500000 or 1000000";
}

/* --- the layer of a file --- */

struct checkpoint {
    struct safetensors *file; /* NULL: it is another's */
    struct layout layout;
    struct tensor_view view;
    struct layer layer; /* borrows from the view */
};

/* Refuses the value `text` of `key` in __metadata__. */
static void refuse_metadata(const char *key, const char *text, const char *expected,
                            attn_error *error) {
    error_keep(error, ATTN_E_VALUE,
               "%s is '%.40s' in __metadata__, but must be %s; "
               "correct it, or write %s= after the file",
               key, text, expected, key);
}

/* Returns a number: the option unless 0, else what __metadata__ has, else 0. */
static size_t find_number(const struct safetensors *file, const char *key, size_t option,
                          attn_error *error) {
    const char *text = safetensors_get_metadata(file, key);

    if (option > 0 || text == NULL)
        return option;
    size_t digits = strspn(text, "0123456789");
    size_t number = digits <= 9 ? strtoul(text, NULL, 10) : 0;
    if (number == 0 || text[digits] != '\0')
        refuse_metadata(key, text, "an integer from 1 to 999999999", error);
    return number;
}

/* Returns a number greater than 0: the option unless 0, else what __metadata__ has, else
 * 0. */
static double find_positive(const struct safetensors *file, const char *key,
                            double option, attn_error *error) {
    const char *text = option == 0 ? safetensors_get_metadata(file, key) : NULL;
    char *end = NULL;

    double number = text != NULL ? strtod(text, &end) : option;
    bool good =
        isfinite(number) && number > 0 && (text == NULL || (end != text && *end == '\0'));
    if (!good && text != NULL)
        refuse_metadata(key, text, "a number greater than 0", error);
    else if (!good && option != 0)
        error_keep(error, ATTN_E_VALUE, "%s=%g must be a number greater than 0", key,
                   option);
    return number;
}

/* Returns a flag: the option, else what __metadata__ has, else the default. */
static bool find_flag(const struct safetensors *file, const char *key, const char *option,
                      bool default_value, attn_error *error) {
    const char *text = option != NULL ? option : safetensors_get_metadata(file, key);
    bool flag = text == NULL ? default_value : strcmp(text, "true") == 0;

    if (text == NULL || flag || strcmp(text, "false") == 0)
        return flag;
    if (option == NULL)
        refuse_metadata(key, text, "true or false", error);
    else
        error_keep(error, ATTN_E_VALUE, "%s=%.40s must be true or false", key, option);
    return flag;
}

/* Fills in what `checkpoint` has of the file, with the options, which may be NULL, or
 * else with those of the file. */
static attn_status find_layer(const char *name, const struct safetensors *file,
                              const attn_model_options *options,
                              struct checkpoint *checkpoint, attn_error *ret_error) {
    static const attn_model_options no_options;
    struct layout *layout = &checkpoint->layout;
    struct layer *layer = &checkpoint->layer;
    attn_error error = {.status = ATTN_OK};

    options = options != NULL ? options : &no_options;
    attn_status status = checkpoint_check_name(name, ret_error);
    if (status == ATTN_OK)
        status = layout_recognise(file, options, layout, &checkpoint->view, ret_error);
    if (status != ATTN_OK)
        return status;

    memcpy(layer->info.name, name, strlen(name) + 1);
    layer->info.num_heads = find_number(file, "num_heads", options->num_heads, &error);
    layer->info.context_length =
        find_number(file, "context_length", options->context_length, &error);
    layer->info.rotation.base =
        find_positive(file, "rope_theta", options->rope_theta, &error);
    layer->info.head_norm.eps = find_positive(file, "eps", options->eps, &error);
    layer->rotation.interleaved =
        find_flag(file, "rope_interleaved", options->rope_interleaved, false, &error);
    layer->info.mask.causal =
        find_flag(file, "causal", options->causal, layout->causal, &error);
    layout->transposed =
        find_flag(file, "transposed", options->transposed, false, &error);
    layout_fill_layer(layout, &checkpoint->view, layer, &error);
    bool may_turn = layout->own && !layout->transposed && error.status == ATTN_E_SHAPE;
    return error.status == ATTN_OK
               ? ATTN_OK
               : error_set(ret_error, error.status, "%s%s", error.text,
                           may_turn ? "; write transposed=true if weights are [in, out]"
                                    : "");
}

attn_status checkpoint_create_model(const char *name, const struct safetensors *file,
                                    const attn_model_options *options,
                                    const attn_engine_options *engine,
                                    attn_model **ret_model, attn_error *ret_error) {
    struct checkpoint checkpoint = {.file = NULL};
    attn_status status = find_layer(name, file, options, &checkpoint, ret_error);
    if (status != ATTN_OK)
        return status;
    return layer_create_model(&checkpoint.layer, &checkpoint.layer.info, engine,
                              ret_model, ret_error);
}

/* Puts the path before an error. */
static attn_status name_file(const char *path, const attn_error *error,
                             attn_error *ret_error) {
    size_t size = strlen(path);
    bool cut = size > PATH_SHOWN_MAX;
    return error_set(ret_error, error->status, "%s%s: %s", cut ? "..." : "",
                     cut ? path + size - PATH_SHOWN_MAX : path, error->text);
}

attn_status attn_model_load(const char *name, const char *path,
                            const attn_model_options *options,
                            const attn_engine_options *engine, attn_model **ret_model,
                            attn_error *ret_error) {
    struct safetensors *file = NULL;
    attn_error error;

    attn_status status = safetensors_open_file(path, &file, &error);
    if (status == ATTN_OK)
        status = checkpoint_create_model(name, file, options, engine, ret_model, &error);
    safetensors_close(file);
    return status == ATTN_OK ? status : name_file(path, &error, ret_error);
}

attn_status checkpoint_open(const char *path, const attn_model_options *options,
                            struct checkpoint **ret_checkpoint, attn_error *ret_error) {
    struct checkpoint *made = calloc(1, sizeof *made);
    attn_error error;
    if (made == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");

    attn_status status = safetensors_open_file(path, &made->file, &error);
    if (status == ATTN_OK)
        status = find_layer("model", made->file, options, made, &error);
    if (status != ATTN_OK) {
        checkpoint_close(made);
        return name_file(path, &error, ret_error);
    }
    *ret_checkpoint = made;
    return ATTN_OK;
}

const struct layer *checkpoint_get_layer(const struct checkpoint *checkpoint) {
    return &checkpoint->layer;
}

void checkpoint_close(struct checkpoint *checkpoint) {
    if (checkpoint == NULL)
        return;
    safetensors_close(checkpoint->file);
    free(checkpoint);
}

attn_status checkpoint_describe(const char *path, const attn_model_options *options,
                                const attn_engine_options *engine, bool check_weights,
                                attn_model_info *ret_info, attn_error *ret_error) {
    struct checkpoint *checkpoint = NULL;
    attn_error error;

    attn_status status = checkpoint_open(path, options, &checkpoint, ret_error);
    if (status != ATTN_OK)
        return status;
    struct layer *layer = &checkpoint->layer;
    if (check_weights)
        status = layer_check(layer, &error);
    if (status == ATTN_OK)
        status = model_describe(&layer->info, engine, ret_info, &error);
    checkpoint_close(checkpoint);
    return status == ATTN_OK ? status : name_file(path, &error, ret_error);
}
