/* SPDX-License-Identifier: Apache-2.0 */
/* open.c: opens the folder that a specification names, and names a remedy on failure. */
#include "models/open.h"

#include "base/error.h"
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

/* Returns whether a path could be the name of a model at Hugging Face, "gpt2" or
 * "meta-llama/Llama-3.2-1B", and is not the name of a file. */
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
