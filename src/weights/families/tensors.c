/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.c: opens the files of a folder. With an index, it alone says which tensors
 * there are, and each must be in the shard that it names. */
#include "weights/families/tensors.h"

#include "base/error.h"
#include "safetensors/foreign.h"
#include "weights/families/config.h"

#include <fnmatch.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ONE_FILE   "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"
#define BROKEN_LINK                                                                      \
    "is a link to a file that is not there; finish the download, as by hf download NAME"

static int compare_tensor_names(const void *a, const void *b) {
    const struct safetensors_tensor *left = a, *right = b;
    return strcmp(left->name, right->name);
}

/* Opens a file of the folder and keeps it. */
static attn_status open_shard(struct folder_tensors *tensors, const char *path,
                              const char *name, attn_error *ret_error) {
    char file[PATH_MAX];
    struct stat link;
    attn_error error;

    if (tensors->num_files == TENSORS_SHARDS_MAX)
        return error_set(ret_error, ATTN_E_FORMAT, "has more than %d shards",
                         TENSORS_SHARDS_MAX);
    if (snprintf(file, sizeof file, "%s/%s", path, name) >= (int)sizeof file)
        return error_set(ret_error, ATTN_E_VALUE, "the path of %.80s is too long", name);

    attn_status status =
        safetensors_open_file(file, &tensors->files[tensors->num_files], &error);
    if (status != ATTN_OK && access(file, F_OK) != 0 && lstat(file, &link) == 0)
        return error_set(ret_error, ATTN_E_FORMAT, "%.80s " BROKEN_LINK, name);
    if (status != ATTN_OK)
        return error_set(ret_error, status, "%.80s: %s%s", name, error.text,
                         access(file, F_OK) != 0 ? "; copy the folder again" : "");
    tensors->num_files++;
    return ATTN_OK;
}

/* A shard is a file of the same folder, and nothing else. */
static bool is_file_name(const char *name) {
    return name != NULL && name[0] != '\0' && strpbrk(name, "/\\") == NULL &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Finds the tensor that the index promises, in the shard called `shard`. */
static attn_status find_promised(struct folder_tensors *tensors, const char *path,
                                 const char *name, const char *shard,
                                 attn_error *ret_error) {
    size_t file = 0;

    while (file < tensors->num_files &&
           strcmp(safetensors_get_path(tensors->files[file]) + strlen(path) + 1, shard) !=
               0)
        file++;
    if (file == tensors->num_files) {
        attn_status status = open_shard(tensors, path, shard, ret_error);
        if (status != ATTN_OK)
            return status;
    }

    const struct tensor_view all = tensor_view_of(tensors->files[file]);
    const struct safetensors_tensor *found = tensor_view_find(&all, name);
    if (found == NULL)
        return error_set(ret_error, ATTN_E_FORMAT,
                         INDEX_FILE ": tensor '%.80s' is promised in %.80s, which lacks "
                                    "it; copy the folder again",
                         name, shard);
    tensors->copies[tensors->view.count++] = *found;
    return ATTN_OK;
}

/* Lists the tensors of the index, and opens each shard. */
static attn_status list_shards(struct folder_tensors *tensors, const char *path,
                               const json_t *index, attn_error *ret_error) {
    json_t *map = json_object_get(index, "weight_map");
    const char *name;
    json_t *value;

    if (!json_is_object(map))
        return error_set(ret_error, ATTN_E_FORMAT,
                         INDEX_FILE ": weight_map is not an object of file names");
    tensors->copies = calloc(json_object_size(map) + 1, sizeof *tensors->copies);
    if (tensors->copies == NULL)
        return error_set(ret_error, ATTN_E_NOMEM,
                         "not enough memory to list its tensors");
    tensors->view.tensors = tensors->copies;

    json_object_foreach(map, name, value) {
        const char *shard = json_string_value(value);
        if (!is_file_name(shard))
            return error_set(ret_error, ATTN_E_FORMAT,
                             INDEX_FILE
                             ": tensor '%.80s' is said to be in '%.80s', which "
                             "is not the name of a file in this folder",
                             name, shard != NULL ? shard : "");
        attn_status status = find_promised(tensors, path, name, shard, ret_error);
        if (status != ATTN_OK)
            return status;
    }
    qsort(tensors->copies, tensors->view.count, sizeof *tensors->copies,
          compare_tensor_names);
    return ATTN_OK;
}

/* Python that converts a folder. */
#define CONVERT                                                                          \
    ": python3 -c \"import sys; from transformers import AutoModel; "                    \
    "AutoModel.from_pretrained(sys.argv[1])"                                             \
    ".save_pretrained(sys.argv[1] + '-converted')\" FOLDER"

/* A folder may have these instead of model.safetensors; each has a remedy. */
static const struct {
    const char *name, *remedy;
    bool needs_config; /* the remedy does */
} other_weights[] = {
    {"pytorch_model.bin", "has a pickle only; convert it with" CONVERT, true},
    {"pytorch_model.bin.index.json", "has pickles only; convert them with" CONVERT, true},
    {"adapter_model.safetensors",
     "has an adapter only; merge it into its base model with peft's merge_and_unload(), "
     "and save that",
     false},
    {"consolidated.safetensors",
     "has weights under the names of Meta and Mistral; give the folder with "
     "model.safetensors",
     false},
    {"consolidated.00.pth",
     "has weights under Meta's names; give the folder with model.safetensors", false},
    {"tf_model.h5",
     "has weights of TensorFlow only; give a folder with safetensors, which transformers "
     "4 makes by from_tf=True",
     false},
};

/* Returns whether the file at `path` is one of another program, which ret_error says. */
static bool is_foreign(const char *path, attn_error *ret_error) {
    unsigned char bytes[SAFETENSORS_FOREIGN_MAX];
    FILE *file = fopen(path, "re");
    size_t size = file != NULL ? fread(bytes, 1, sizeof bytes, file) : 0;

    if (file != NULL)
        fclose(file);
    return safetensors_find_foreign(bytes, size, path, ret_error);
}

/* Refuses a folder whose largest file, but for JSON, is one of another program. Exports
 * to ONNX are in onnx/. */
static attn_status refuse_largest(const char *path, attn_error *ret_error) {
    char pattern[PATH_MAX];
    const char *largest = NULL;
    off_t size = 0;
    struct stat file;
    attn_error error = {.status = ATTN_OK};
    glob_t found;

    if (snprintf(pattern, sizeof pattern, "%s/{*,onnx/*}", path) >= (int)sizeof pattern ||
        glob(pattern, GLOB_BRACE, NULL, &found) != 0)
        return ATTN_OK;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (stat(found.gl_pathv[i], &file) != 0 || !S_ISREG(file.st_mode) ||
            file.st_size <= size || fnmatch("*.json", found.gl_pathv[i], 0) == 0)
            continue;
        largest = found.gl_pathv[i];
        size = file.st_size;
    }
    if (largest != NULL && is_foreign(largest, &error))
        error_set(ret_error, ATTN_E_UNSUPPORTED, "has %s" ONE_FILE "; %.80s %s",
                  config_has_file(path, "config.json") ? "no " : "no config.json and no ",
                  largest + strlen(path) + 1, error.text);
    globfree(&found);
    return error.status == ATTN_OK ? ATTN_OK : ATTN_E_UNSUPPORTED;
}

/* Refuses a file that is a link to nothing, and a folder around one with a config.json,
 * or around those of models in a cache of Hugging Face. */
static attn_status refuse_download(const char *path, attn_error *ret_error) {
    static const char *const names[] = {"config.json", ONE_FILE, INDEX_FILE};
    char file[PATH_MAX];
    struct stat link;
    glob_t found;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (snprintf(file, sizeof file, "%s/%s", path, names[i]) < (int)sizeof file &&
            lstat(file, &link) == 0 && !config_has_file(path, names[i]))
            return error_set(ret_error, ATTN_E_FORMAT, "%s " BROKEN_LINK, names[i]);
    }
    if (config_has_file(path, names[0]) ||
        snprintf(file, sizeof file, "%s/{*/config.json,*/snapshots}", path) >=
            (int)sizeof file ||
        glob(file, GLOB_BRACE, NULL, &found) != 0)
        return ATTN_OK;
    error_set(ret_error, ATTN_E_FORMAT,
              "is a directory without config.json; give the one in it that has it: %.*s",
              (int)(strrchr(found.gl_pathv[0], '/') - found.gl_pathv[0]),
              found.gl_pathv[0]);
    globfree(&found);
    return ATTN_E_FORMAT;
}

bool folder_tensors_exist(const char *path) {
    return config_has_file(path, ONE_FILE) || config_has_file(path, INDEX_FILE);
}

attn_status folder_tensors_refuse(const char *path, const char *otherwise,
                                  attn_error *ret_error) {
    bool has_weights = folder_tensors_exist(path);

    if (refuse_download(path, ret_error) != ATTN_OK)
        return ATTN_E_FORMAT;
    for (size_t i = 0; !has_weights && i < sizeof other_weights / sizeof other_weights[0];
         i++) {
        if (config_has_file(path, other_weights[i].name) &&
            (!other_weights[i].needs_config || config_has_file(path, "config.json")))
            return error_set(ret_error, ATTN_E_UNSUPPORTED, "%s",
                             other_weights[i].remedy);
    }
    attn_status status = has_weights ? ATTN_OK : refuse_largest(path, ret_error);
    if (status != ATTN_OK || otherwise == NULL)
        return status;
    return error_set(ret_error, ATTN_E_FORMAT, "%s", otherwise);
}

attn_status folder_tensors_open(const char *path, struct folder_tensors *ret_tensors,
                                attn_error *ret_error) {
    attn_status status;
    json_t *index;

    *ret_tensors = (struct folder_tensors){.num_files = 0};
    if (config_has_file(path, ONE_FILE)) {
        status = open_shard(ret_tensors, path, ONE_FILE, ret_error);
        if (status == ATTN_OK)
            ret_tensors->view = tensor_view_of(ret_tensors->files[0]);
        return status;
    }

    status = config_read_file(path, INDEX_FILE, &index, ret_error);
    if (status != ATTN_OK)
        return status;
    if (index == NULL)
        return folder_tensors_refuse(path,
                                     "has neither " ONE_FILE " nor " INDEX_FILE
                                     "; give the folder that save_pretrained() wrote, "
                                     "or call a file of all weights " ONE_FILE,
                                     ret_error);
    status = list_shards(ret_tensors, path, index, ret_error);
    json_decref(index);
    return status;
}

void folder_tensors_deinit(struct folder_tensors *tensors) {
    for (size_t i = 0; i < tensors->num_files; i++)
        safetensors_close(tensors->files[i]);
    free(tensors->copies);
    *tensors = (struct folder_tensors){.num_files = 0};
}
