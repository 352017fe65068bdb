/* SPDX-License-Identifier: Apache-2.0 */
/* folder.c: opens a folder, finds its layers, and makes models of them. */
#include "weights/families/folder.h"

#include "base/error.h"
#include "base/size.h"
#include "math/model.h"
#include "weights/checkpoint.h"
#include "weights/families/fp8.h"
#include "weights/families/hub.h"
#include "weights/families/kinds.h"
#include "weights/families/locate/locate.h"
#include "weights/families/tensors.h"
#include "weights/layer/make.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_FILE     "config.json"
#define PATH_SHOWN_SIZE 120 /* bytes of a path that an error shows: its end */

struct folder {
    atomic_size_t num_shares;
    char path[PATH_SHOWN_SIZE + 4]; /* as errors show it, with ": " */
    json_t *config;
    struct folder_tensors tensors;
    struct fp8 fp8;
    struct layer *layers; /* [num_layers] */
    size_t num_layers;
    char notes[FOLDER_NUM_NOTES][200]; /* see folder_get_note(); "": none */
};

bool folder_is_at(const char *path) {
    char found[PATH_MAX];
    return hub_find_folder(path, found, NULL) == ATTN_OK &&
           config_has_file(found, CONFIG_FILE);
}

/* Whether a file of the folder decides what is served. */
static bool is_read(const char *name) {
    return strcmp(name, CONFIG_FILE) == 0 || strstr(name, ".safetensors") != NULL;
}

bool folder_has_family(const char *path) {
    char found[PATH_MAX];
    json_t *config = NULL;
    attn_error error = {.status = ATTN_OK};

    attn_status status = hub_find_folder(path, found, &error);
    if (status == ATTN_OK)
        status = config_read_file(found, CONFIG_FILE, &config, &error);
    if (status == ATTN_OK && config != NULL)
        status = match_check_type(config, &error);
    json_decref(config);
    return status != ATTN_E_UNSUPPORTED;
}

void folder_find_state(const char *path, struct stat *ret_state) {
    *ret_state = (struct stat){.st_ino = 0};
    char found_path[PATH_MAX];
    DIR *folder = NULL;
    if (hub_find_folder(path, found_path, NULL) == ATTN_OK)
        folder = opendir(found_path);
    if (folder == NULL)
        return;

    /* Sums, since a folder lists its files in any order. */
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char file[PATH_MAX];
        struct stat found;
        if (!is_read(entry->d_name) ||
            snprintf(file, sizeof file, "%s/%s", found_path, entry->d_name) >=
                (int)sizeof file ||
            stat(file, &found) != 0)
            continue;
        ret_state->st_dev = found.st_dev;
        ret_state->st_ino += found.st_ino;
        ret_state->st_size += found.st_size;
        ret_state->st_mtim.tv_sec += found.st_mtim.tv_sec;
        ret_state->st_mtim.tv_nsec += found.st_mtim.tv_nsec;
    }
    closedir(folder);
}

bool folder_state_is_same(const struct stat *a, const struct stat *b) {
    return a->st_ino != 0 && a->st_ino == b->st_ino && a->st_dev == b->st_dev &&
           a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Reads a range of a list such as "0-3,7", and goes to what ends it. Returns false when
 * it is not one. */
static bool read_layer_range(const char **at, unsigned long *ret_first,
                             unsigned long *ret_last) {
    size_t digits = strspn(*at, "0123456789"), more = digits;

    *ret_first = *ret_last = strtoul(*at, NULL, 10);
    *at += digits;
    if (**at == '-') {
        more = strspn(++*at, "0123456789");
        *ret_last = strtoul(*at, NULL, 10);
        *at += more;
    }
    return digits >= 1 && digits <= 8 && more >= 1 && more <= 8 &&
           *ret_last >= *ret_first && (**at == ',' || **at == '\0');
}

/* Returns whether the list, which is well formed, has `index`; NULL has all. */
static bool is_selected(const char *list, size_t index) {
    unsigned long first, last;

    for (const char *at = list; at != NULL; at = *at == ',' ? at + 1 : NULL) {
        if (read_layer_range(&at, &first, &last) && first <= index && index <= last)
            return true;
    }
    return list == NULL;
}

/* Checks the form of the list, and that each of its numbers has a layer. */
static attn_status check_selection(const char *list, size_t num_layers,
                                   attn_error *ret_error) {
    unsigned long first, last;

    for (const char *at = list; at != NULL; at = *at == ',' ? at + 1 : NULL) {
        if (!read_layer_range(&at, &first, &last))
            return error_set(ret_error, ATTN_E_VALUE,
                             "layers=%.80s is not a list such as 0-3,7", list);
        if (last >= num_layers)
            return error_set(ret_error, ATTN_E_VALUE,
                             "layers=%.80s has layer %lu, but the folder has %zu", list,
                             last, num_layers);
    }
    return ATTN_OK;
}

/* Checks the norms that pre_norm=true asks for. Single layers may have none. */
static attn_status check_pre_norm(const struct folder *folder, const struct match *match,
                                  attn_error *ret_error) {
    size_t count = 0;

    for (size_t i = 0; i < folder->num_layers; i++) {
        const struct layer *layer = &folder->layers[i];
        const struct layer_norm *norm = &layer->norm_before;
        bool is_there = layer->info.pre_norm.kind != ATTN_NORM_NONE;
        count += is_there || norm->bare;
        if (is_there && norm->weight == NULL && !norm->bare)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "the norm before layer %s is not in the files; leave out "
                             "pre_norm=true",
                             layer->part);
    }
    if (count > 0)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "the layers of this %s have no norm before them; leave out "
                     "pre_norm=true",
                     match->type);
}

/* Reads a skipped layer only to note which keys of config.json it uses; its errors are
 * ignored. */
static void ask_for_keys(const struct match *match, const struct match_stack *stack,
                         size_t index) {
    attn_error ignored = {.status = ATTN_OK};
    struct match_stack apart = *stack;
    struct layer layer;

    apart.section.error = &ignored;
    traits_read(match, &apart, index, &layer);
}

/* Sets whether the layer applies the norm before it: as the option says, else where its
 * numbers are known. */
static void set_pre_norm(struct folder *folder, const char *option, struct layer *layer) {
    char *note = folder->notes[FOLDER_NOTE_NORM];
    bool is_there = layer->info.pre_norm.kind != ATTN_NORM_NONE;
    bool known = layer->info.pre_norm.known;

    layer->info.pre_norm.applied =
        option != NULL ? is_there && strcmp(option, "true") == 0 : known;
    if (is_there && !known && option == NULL && *note == '\0')
        snprintf(note, sizeof folder->notes[0],
                 "the norm before layer %s is not in the files; send rows behind it, or "
                 "add it to the folder",
                 layer->part);
}

/* Adds the layers of a stack that are asked for. */
static attn_status add_stack(struct folder *folder, const struct match *match,
                             const struct match_stack *stack,
                             const struct folder_options *options) {
    for (size_t i = 0; i < stack->num_layers; i++) {
        struct layer *layer = &folder->layers[folder->num_layers];
        const struct layer_source kind = match_source(match, stack, i);
        if (!kind_attends(&kind))
            continue;
        if (!is_selected(options->layers, i)) {
            ask_for_keys(match, stack, i);
            continue;
        }

        attn_status status = traits_read(match, stack, i, layer);
        if (status == ATTN_OK && options->layer != NULL &&
            strcmp(layer->part, options->layer) != 0)
            continue;
        if (status == ATTN_OK)
            status = locate_tensors(match, stack, &folder->tensors.view, layer);
        if (status != ATTN_OK)
            return status;
        layer->info.context_length = options->context_length;
        set_pre_norm(folder, options->pre_norm, layer);
        folder->num_layers++;
    }
    return ATTN_OK;
}

/* Refuses options that select no layer, and lists those that there are. */
static attn_status refuse_selection(const struct match *match,
                                    const struct folder_options *options,
                                    attn_error *ret_error) {
    char parts[MATCH_STACKS_MAX * 2 * (LAYER_PART_SIZE + 4)] = "";
    size_t used = 0;

    for (size_t i = 0; i < match->num_stacks && used < sizeof parts; i++) {
        const struct match_stack *stack = &match->stacks[i];
        const char *before = i == 0 ? "" : i + 1 < match->num_stacks ? ", " : " or ";
        char first[LAYER_PART_SIZE], last[LAYER_PART_SIZE];
        bool several = stack->num_layers > 1;
        traits_name(stack, stack->first, first);
        traits_name(stack, stack->num_layers - 1, last);
        used += (size_t)snprintf(parts + used, sizeof parts - used, "%s%s%s%s", before,
                                 several ? first : "", several ? " to " : "", last);
    }
    if (options->layer == NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "layers=%.80s has no layer with attention; it has some of %s",
                         options->layers, parts);
    return error_set(ret_error, ATTN_E_VALUE, "there is no layer=%.80s; use %s",
                     options->layer, parts);
}

/* Refuses what config.json has that changes the attention, but nothing asked for. */
static attn_status check_keys(const struct folder *folder, const struct match *match,
                              const struct attention_keys *asked, attn_error *ret_error) {
    const char *type = match->type, *ignored = match->family->ignored;
    attn_status status = attention_keys_check_class(folder->config, type, ret_error);

    for (size_t i = 0; i < 2 * match->num_stacks && status == ATTN_OK; i++) {
        const struct config_section *section = &match->stacks[i / 2].section;
        const json_t *object = i % 2 == 0 ? section->object : section->override;
        status = attention_keys_check(asked, object, type, ignored, ret_error);
    }
    return status;
}

/* Notes in what the mask may differ. */
static void note_mask(struct folder *folder, const struct match *match) {
    char *note = folder->notes[FOLDER_NOTE_MASK];

    if (match->text != NULL && match->text->any_mask)
        snprintf(note, sizeof folder->notes[0],
                 "a prompt of %.40s is a prefix, whose tokens see all of it; attnd "
                 "computes a causal mask, or none with causal=false",
                 match->text->type);
    else if (match->unknown != NULL)
        snprintf(note, sizeof folder->notes[0],
                 "class %.60s is not one of %.40s; its mask may differ; set causal=true "
                 "or causal=false",
                 match->unknown, match->type);
}

/* Finds all layers, once config and tensors are there. */
static attn_status find_layers(struct folder *folder,
                               const struct folder_options *options,
                               attn_error *ret_error) {
    struct attention_keys asked = {.asked[0].object = NULL};
    struct match match;
    size_t total = 0, most = 0;

    attn_status status = match_find(folder->config, &folder->tensors.view,
                                    options->prefix, &asked, &match, ret_error);
    if (status != ATTN_OK)
        return status;
    match.causal = options->causal;
    if (match.causal == NULL)
        note_mask(folder, &match);
    for (size_t i = 0; i < match.num_stacks; i++) {
        total += match.stacks[i].num_layers; /* each has a tensor of its own */
        most = size_max(most, match.stacks[i].num_layers);
    }

    status = check_selection(options->layers, most, ret_error);
    if (status != ATTN_OK)
        return status;
    folder->layers = calloc(total + 1, sizeof *folder->layers);
    if (folder->layers == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to list its layers");
    for (size_t i = 0; i < match.num_stacks && status == ATTN_OK; i++)
        status = add_stack(folder, &match, &match.stacks[i], options);
    if (status == ATTN_OK)
        status = check_keys(folder, &match, &asked, ret_error);
    if (status == ATTN_OK && folder->num_layers == 0)
        return refuse_selection(&match, options, ret_error);
    if (status == ATTN_OK && options->pre_norm != NULL &&
        strcmp(options->pre_norm, "true") == 0)
        status = check_pre_norm(folder, &match, ret_error);
    return status;
}

/* Opens config.json and the files of weights, and finds the layers. */
static attn_status open_files(struct folder *folder, const char *path,
                              const struct folder_options *options,
                              attn_error *ret_error) {
    attn_status status = config_read_file(path, CONFIG_FILE, &folder->config, ret_error);
    if (status == ATTN_OK && folder->config == NULL)
        return folder_tensors_refuse(path,
                                     "is a directory without config.json; give the "
                                     "folder that save_pretrained() wrote",
                                     ret_error);
    if (status == ATTN_OK && config_has_file(path, "adapter_config.json"))
        return error_set(ret_error, ATTN_E_UNSUPPORTED,
                         "has an adapter (adapter_config.json); merge it with peft's "
                         "merge_and_unload(), and save that");
    /* before its files, which may have a format that only other families are read from */
    if (status == ATTN_OK)
        status = match_check_type(folder->config, ret_error);
    if (status == ATTN_E_UNSUPPORTED &&
        json_object_get(folder->config, "model_type") == NULL &&
        folder_tensors_refuse(path, NULL, ret_error) != ATTN_OK)
        return ret_error->status;
    if (status == ATTN_OK)
        status = folder_tensors_open(path, &folder->tensors, ret_error);
    if (status == ATTN_OK)
        status = fp8_attach(folder->config, &folder->tensors, &folder->fp8, ret_error);
    if (status == ATTN_OK)
        status = find_layers(folder, options, ret_error);
    return status;
}

attn_status folder_open(const char *path, const struct folder_options *options,
                        struct folder **ret_folder, attn_error *ret_error) {
    static const struct folder_options no_options;
    struct folder *folder = calloc(1, sizeof *folder);
    char found[PATH_MAX];
    attn_error error = {.status = ATTN_OK};

    if (folder == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to open the folder");
    if (options == NULL)
        options = &no_options;
    atomic_init(&folder->num_shares, 1);

    attn_status status = hub_find_folder(path, found, &error);
    const char *shown = status == ATTN_OK ? found : path;
    size_t size = strlen(shown);
    bool cut = size > PATH_SHOWN_SIZE - 3;
    snprintf(folder->path, sizeof folder->path, "%s%s: ", cut ? "..." : "",
             cut ? shown + size - (PATH_SHOWN_SIZE - 3) : shown);
    if (status == ATTN_OK)
        status = open_files(folder, found, options, &error);
    if (status == ATTN_OK) {
        *ret_folder = folder;
        return ATTN_OK;
    }

    error_set(ret_error, status, "%s%s", folder->path, error.text);
    folder_close(folder);
    return status;
}

struct folder *folder_share(struct folder *folder) {
    atomic_fetch_add(&folder->num_shares, 1);
    return folder;
}

void folder_close(struct folder *folder) {
    if (folder == NULL || atomic_fetch_sub(&folder->num_shares, 1) > 1)
        return;
    free(folder->layers);
    fp8_deinit(&folder->fp8);
    folder_tensors_deinit(&folder->tensors);
    json_decref(folder->config);
    free(folder);
}

const struct layer *folder_get_layers(const struct folder *folder, size_t *ret_count) {
    *ret_count = folder->num_layers;
    return folder->layers;
}

const char *folder_get_note(const struct folder *folder, enum folder_note which) {
    return folder->notes[which][0] != '\0' ? folder->notes[which] : NULL;
}

attn_status folder_check_models(const struct folder *folder,
                                const attn_engine_options *engine, size_t memory,
                                size_t *bytes, attn_error *ret_error) {
    size_t left = memory > *bytes ? memory - *bytes : 0, sum = 0;

    for (size_t i = 0; i < folder->num_layers; i++) {
        attn_model_info info;
        attn_status status =
            model_describe(&folder->layers[i].info, engine, &info, ret_error);
        if (status != ATTN_OK)
            return status;
        size_add_saturating(&sum, info.footprint.memory);
    }
    if (sum <= left) {
        *bytes += sum;
        return ATTN_OK;
    }
    return error_set(ret_error, sum > memory ? ATTN_E_OVERFLOW : ATTN_E_NOMEM,
                     "%sits %zu layers need %zu bytes, but this process may use %zu%s; "
                     "choose some with layers=0-%zu, or precision=bf16",
                     folder->path, folder->num_layers, sum, left,
                     *bytes > 0 ? " beside other folders" : "", folder->num_layers / 2);
}

/* Adds the path and the layer to an error. */
static attn_status name_layer(const struct folder *folder, size_t i, attn_status status,
                              const attn_error *error, attn_error *ret_error) {
    if (status == ATTN_OK)
        return ATTN_OK;
    return error_set(ret_error, status, "%slayer %s: %s", folder->path,
                     folder->layers[i].part, error->text);
}

attn_status folder_check_layer(struct folder *folder, size_t i, attn_error *ret_error) {
    attn_error error;
    return name_layer(folder, i, layer_check(&folder->layers[i], &error), &error,
                      ret_error);
}

attn_status folder_create_model(const struct folder *folder, size_t i, const char *name,
                                const attn_engine_options *engine, attn_model **ret_model,
                                attn_error *ret_error) {
    attn_model_info info = folder->layers[i].info;
    attn_error error;

    attn_status status = checkpoint_check_name(name, ret_error);
    if (status != ATTN_OK)
        return status;
    memcpy(info.name, name, strlen(name) + 1);
    status = layer_create_model(&folder->layers[i], &info, engine, ret_model, &error);
    return name_layer(folder, i, status, &error, ret_error);
}
