/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c: opens folders, and prints their layers. */
#include "cli/folder.h"

#include "base/error.h"
#include "base/machine.h"
#include "weights/families/features.h"
#include "weights/families/folder.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

attn_status folder_open_spec(const struct model_spec *spec, struct folder **ret_folder,
                             attn_error *ret_error) {
    struct stat stat_of_path;
    const attn_model_options *options = &spec->options;
    bool is_folder =
        stat(spec->path, &stat_of_path) == 0 && S_ISDIR(stat_of_path.st_mode);

    *ret_folder = NULL;
    if (!is_folder && (spec->layers != NULL || spec->layer != NULL || spec->pre_norm))
        return error_set(ret_error, ATTN_E_VALUE,
                         "%.160s: %s is for folders, but this is not one; leave it out",
                         spec->path,
                         spec->layers != NULL  ? "layers"
                         : spec->layer != NULL ? "layer"
                                               : "pre_norm");
    if (!is_folder)
        return ATTN_OK;
    if (options->num_heads > 0 || options->layout != NULL || options->causal != NULL)
        return error_set(
            ret_error, ATTN_E_VALUE,
            "%.160s: %s of a folder comes from its config.json; leave it out", spec->path,
            options->num_heads > 0    ? "num_heads"
            : options->layout != NULL ? "layout"
                                      : "causal");

    const struct folder_options folder_options = {
        .layers = spec->layers,
        .layer = spec->layer,
        .prefix = options->prefix,
        .pre_norm = spec->pre_norm,
        .context_length = options->context_length,
    };
    return folder_open(spec->path, &folder_options, ret_folder, ret_error);
}

attn_status folder_open_to_serve(const struct model_spec *spec,
                                 const attn_engine_options *engine, size_t *bytes,
                                 struct folder **ret_folder, attn_error *ret_error) {
    struct folder *folder;
    attn_status status = folder_open_spec(spec, &folder, ret_error);

    if (status == ATTN_OK && folder != NULL)
        status =
            folder_check_models(folder, engine, machine_memory(""), bytes, ret_error);
    if (status == ATTN_OK) {
        *ret_folder = folder;
        return ATTN_OK;
    }
    folder_close(folder);
    return status;
}

attn_status folder_hint(const char *path, attn_status status, attn_error *error) {
    char folder[PATH_MAX];
    const char *name = strrchr(path, '/');
    size_t size = name == NULL ? 0 : (size_t)(name - path);

    if (status != ATTN_E_FORMAT ||
        snprintf(folder, sizeof folder, "%.*s", (int)size, path) >= (int)sizeof folder ||
        !folder_is_at(size > 0 ? folder : "."))
        return status;
    size_t used = strlen(error->text);
    snprintf(error->text + used, sizeof error->text - used,
             "; it is in a folder with config.json: give the folder instead");
    return status;
}

/* Prints a row: what the layer is. */
static attn_status print_layer(const struct folder *folder, size_t i,
                               const attn_engine_options *engine, attn_error *ret_error) {
    size_t count;
    const struct layer *layer = &folder_get_layers(folder, &count)[i];
    char features[FEATURES_TEXT_SIZE];
    attn_model_info info;

    attn_status status = folder_describe_model(folder, i, engine, &info, ret_error);
    if (status != ATTN_OK)
        return status;
    layer_describe_features(layer, features);
    printf("  %-16s %5zu %5zu %5zu %12zu  %s\n", layer->part, layer->num_heads,
           layer->num_kv_heads, layer->head_size, info.memory, features);
    return ATTN_OK;
}

attn_status folder_inspect_spec(const struct model_spec *spec,
                                const attn_engine_options *engine, bool *ret_is_folder,
                                attn_error *ret_error) {
    struct folder *folder;
    size_t count = 0;
    attn_error error;
    attn_status status = folder_open_spec(spec, &folder, ret_error);

    *ret_is_folder = folder != NULL;
    if (folder == NULL)
        return status;
    const struct layer *layers = folder_get_layers(folder, &count);
    printf("%s: family %s, %zu layer%s\n", spec->path, layers[0].family, count,
           plural_of(count));
    printf("  %-16s %5s %5s %5s %12s  %s\n", "layer", "H", "KV", "D", "bytes",
           "features");
    for (size_t i = 0; i < count && status == ATTN_OK; i++)
        status = print_layer(folder, i, engine, &error);
    if (status != ATTN_OK)
        error_set(ret_error, status, "%.160s: %s", spec->path, error.text);
    folder_close(folder);
    return status;
}
