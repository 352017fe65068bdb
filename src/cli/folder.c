/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c: opens folders, and prints their layers. */
#include "cli/folder.h"

#include "base/error.h"
#include "base/machine.h"
#include "cli/team.h"
#include "weights/families/features.h"
#include "weights/families/folder.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUB_NAME_MAX 96 /* bytes of a model's name at Hugging Face, with its owner */

attn_status folder_open_spec(const struct model_spec *spec, struct folder **ret_folder,
                             attn_error *ret_error) {
    struct stat stat_of_path;
    const attn_model_options *options = &spec->options;
    bool exists = stat(spec->path, &stat_of_path) == 0;
    bool is_folder = exists && S_ISDIR(stat_of_path.st_mode);

    *ret_folder = NULL;
    if (exists && !is_folder &&
        (spec->layers != NULL || spec->layer != NULL || spec->pre_norm))
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

/* Returns whether a path could be the name of a model at Hugging Face, "gpt2" or
 * "meta-llama/Llama-3.2-1B", and is not that of a file. */
static bool is_hub_name(const char *path) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t owner = strspn(path, allowed), size = strlen(path);
    size_t name = path[owner] == '/' ? strspn(path + owner + 1, allowed) : 0;
    const char *suffix = strrchr(path, '.');
    bool is_file = suffix != NULL && (strcmp(suffix, ".safetensors") == 0 || name == 0);

    return owner > 0 && path[0] != '.' && !is_file && size <= HUB_NAME_MAX &&
           (name == 0 ? size == owner : size == owner + 1 + name);
}

attn_status folder_hint(const char *path, attn_status status, attn_error *error) {
    char folder[PATH_MAX];
    const char *name = strrchr(path, '/');
    size_t size = name == NULL ? 0 : (size_t)(name - path);
    size_t used = status != ATTN_OK ? strlen(error->text) : 0;
    char *end = error->text + used;

    if (status == ATTN_E_IO && access(path, F_OK) != 0 && is_hub_name(path))
        snprintf(end, sizeof error->text - used,
                 "; if that is a model of Hugging Face: hf download %s --local-dir %s",
                 path, name != NULL ? name + 1 : path);
    if (status == ATTN_E_FORMAT &&
        snprintf(folder, sizeof folder, "%.*s", (int)size, path) < (int)sizeof folder &&
        folder_is_at(size > 0 ? folder : "."))
        snprintf(end, sizeof error->text - used,
                 "; it is in a folder with config.json: give the folder instead");
    return status;
}

/* --- attnd inspect --- */

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

/* The layers whose numbers are checked. */
struct numbers_check {
    const struct folder *folder;
    size_t count;
};

/* team_work.run */
static attn_status check_layer(void *context, size_t i, attn_error *ret_error) {
    const struct numbers_check *check = context;
    return folder_check_weights(check->folder, i, ret_error);
}

/* team_work.report */
static void report_checked(void *context, size_t done) {
    const struct numbers_check *check = context;
    fprintf(stderr, "attnd: %zu of %zu layers checked\n", done, check->count);
}

/* Prints what the layers are, which needs no weights. */
static attn_status print_layers(const char *path, const struct folder *folder,
                                const attn_engine_options *engine,
                                attn_error *ret_error) {
    size_t count = 0;
    attn_error error;
    attn_status status = ATTN_OK;
    const struct layer *layers = folder_get_layers(folder, &count);

    printf("%s: family %s, %zu layer%s\n", path, layers[0].family, count,
           plural_of(count));
    printf("  %-16s %5s %5s %5s %12s  %s\n", "layer", "H", "KV", "D", "bytes",
           "features");
    for (size_t i = 0; i < count && status == ATTN_OK; i++)
        status = print_layer(folder, i, engine, &error);
    if (status != ATTN_OK)
        error_set(ret_error, status, "%.160s: %s", path, error.text);
    return status;
}

attn_status folder_inspect_spec(const struct model_spec *spec,
                                const attn_engine_options *engine, bool *ret_is_folder,
                                attn_error *ret_error) {
    struct numbers_check check;
    struct folder *folder;
    attn_status status = folder_open_spec(spec, &folder, ret_error);

    *ret_is_folder = folder != NULL;
    if (folder == NULL)
        return status;
    status = print_layers(spec->path, folder, engine, ret_error);
    fflush(stdout); /* the table is there while numbers are read */
    check.folder = folder;
    folder_get_layers(folder, &check.count);
    if (status == ATTN_OK)
        status = team_run(&(struct team_work){.count = check.count,
                                              .run = check_layer,
                                              .report = report_checked,
                                              .context = &check},
                          ret_error);
    folder_close(folder);
    return status;
}
