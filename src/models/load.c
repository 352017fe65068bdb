/* SPDX-License-Identifier: Apache-2.0 */
/* load.c: reads --model, --model-dir and --demo. */
#include "models/load.h"

#include "base/error.h"
#include "config/options.h"
#include "models/open.h"
#include "models/spec.h"
#include "weights/checkpoint.h"
#include "weights/families/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL_SUFFIX ".safetensors"

attn_engine_options load_engine_options(const struct config *config,
                                        const char *precision, bool serve_only) {
    return (attn_engine_options){
        .engine = option_choice("engine", config->engine),
        .cpu = option_choice("cpu", config->cpu),
        .precision =
            precision != NULL ? precision : option_choice("precision", config->precision),
        .serve_only = serve_only,
    };
}

/* Refuses a name that a path cannot have; `origin` is where it is from. */
static attn_status check_name(const char *name, const char *origin,
                              attn_error *ret_error) {
    const char *reason = NULL;

    if (strcmp(name, "stats") == 0)
        reason = "/v2/models/stats has the statistics of all models";
    else if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        reason = "clients remove it from paths";
    if (reason == NULL)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "%s: no model can be called '%s', since %s; choose another name",
                     origin, name, reason);
}

attn_status load_check(const struct config *config, attn_error *ret_error) {
    if (config->models.count == 0 && config->model_dir == NULL && !config->demo)
        return error_set(ret_error, ATTN_E_VALUE,
                         "no model to serve; give --model NAME=FILE, "
                         "--model-dir DIR or --demo");

    for (size_t i = 0; i < config->models.count; i++) {
        struct model_spec spec;
        attn_status status = model_spec_parse(config->models.items[i], &spec, ret_error);
        if (status == ATTN_OK) {
            status = check_name(spec.name, "--model", ret_error);
            model_spec_deinit(&spec);
        }
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

/* --- what the options name --- */

/* Adds a source, whose texts are copied. `path` is NULL for a built-in model. */
static attn_status add_source(struct load_sources *sources, const char *name,
                              const char *path, const char *spec, attn_error *ret_error) {
    size_t count = sources->count + 1;
    struct load_source *items = realloc(sources->items, count * sizeof *items);
    if (items == NULL) {
        error_set(ret_error, ATTN_E_NOMEM, "out of memory");
        return ATTN_E_NOMEM;
    }

    struct load_source *source = &items[sources->count++];
    sources->items = items;
    *source = (struct load_source){.name = strdup(name), .spec = spec};
    if (path != NULL)
        source->path = strdup(path);
    if (source->name == NULL || (path != NULL && source->path == NULL))
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    if (path != NULL && stat(path, &source->file) != 0)
        source->file = (struct stat){0}; /* load_model() says why */
    return ATTN_OK;
}

/* Adds layer `i`, called `part`, of a folder in the state `state`. */
static attn_status add_layer(struct load_sources *sources, const struct model_spec *spec,
                             const char *text, struct folder *folder, size_t i,
                             const char *part, const struct stat *state,
                             attn_error *ret_error) {
    char name[ATTN_NAME_MAX + 64];

    snprintf(name, sizeof name, "%s.%s", spec->name, part);
    attn_status status = add_source(sources, name, spec->path, text, ret_error);
    if (status != ATTN_OK)
        return status;
    struct load_source *source = &sources->items[sources->count - 1];
    source->file = *state;
    source->folder = folder_share(folder);
    source->layer = i;
    source->part = strdup(part);
    return source->part != NULL ? ATTN_OK
                                : error_set(ret_error, ATTN_E_NOMEM, "out of memory");
}

/* Adds what `spec` asks for: one source for a file, or for each layer of a folder. `text`
 * is the value of --model, or NULL. */
static attn_status add_sources(const struct config *config, struct load_sources *sources,
                               const struct model_spec *spec, const char *text,
                               attn_error *ret_error) {
    const attn_engine_options engine = load_engine_options(config, spec->precision, true);
    struct folder *folder = NULL;
    struct stat state;
    size_t count;
    attn_error error;

    attn_status status =
        folder_open_to_serve(spec, &engine, &sources->bytes, &folder, &error);
    if (status == ATTN_E_NOMEM) /* which is not the folder's fault */
        return error_set(ret_error, status, "%s", error.text);
    if (status != ATTN_OK || folder == NULL) /* load_model() says why */
        return add_source(sources, spec->name, spec->path, text, ret_error);

    folder_find_state(spec->path, &state);
    const struct layer *layers = folder_get_layers(folder, &count);
    for (size_t i = 0; i < count && status == ATTN_OK; i++)
        status =
            add_layer(sources, spec, text, folder, i, layers[i].part, &state, ret_error);
    folder_close(folder);
    return status;
}

static attn_status add_spec(const struct config *config, struct load_sources *sources,
                            const char *text, attn_error *ret_error) {
    struct model_spec spec;
    attn_status status = model_spec_parse(text, &spec, ret_error);
    if (status != ATTN_OK)
        return status;
    status = add_sources(config, sources, &spec, text, ret_error);
    model_spec_deinit(&spec);
    return status;
}

static bool has_model_suffix(const char *file) {
    size_t size = strlen(file), suffix = strlen(MODEL_SUFFIX);
    return size > suffix && strcmp(file + size - suffix, MODEL_SUFFIX) == 0;
}

/* A file of one layer, or what may be a folder of many. Hidden ones are left out, such as
 * the ._x.safetensors that macOS puts beside x.safetensors. */
static int is_model_entry(const struct dirent *entry) {
    return entry->d_name[0] != '.' &&
           (has_model_suffix(entry->d_name) || entry->d_type != DT_REG);
}

/* Adds a file of --model-dir, or a folder in it that has a config.json. */
static attn_status add_model_entry(const struct config *config,
                                   struct load_sources *sources, const char *file,
                                   attn_error *ret_error) {
    char path[PATH_MAX], name[NAME_MAX + 1];
    const struct model_spec spec = {.name = file, .path = path};

    if (snprintf(path, sizeof path, "%s/%s", config->model_dir, file) >= (int)sizeof path)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model-dir: the path of %s is too long", file);
    if (folder_is_at(path))
        return add_sources(config, sources, &spec, NULL, ret_error);
    if (!has_model_suffix(file))
        return ATTN_OK;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(file) - strlen(MODEL_SUFFIX)), file);
    return add_source(sources, name, path, NULL, ret_error);
}

static attn_status refuse_folder(const char *path, int number, attn_error *ret_error) {
    if (number != EACCES)
        return error_set(ret_error, ATTN_E_IO, "--model-dir: cannot read %s: %s", path,
                         strerror(number));
    return error_set(ret_error, ATTN_E_IO,
                     "--model-dir: user %lu cannot read %s: %s; "
                     "open it, as in chmod a+rx FOLDER",
                     (unsigned long)geteuid(), path, strerror(number));
}

static attn_status add_folder(const struct config *config, struct load_sources *sources,
                              attn_error *ret_error) {
    const char *folder = config->model_dir;
    struct dirent **entries;
    int count = scandir(folder, &entries, is_model_entry, alphasort);
    if (count < 0)
        return refuse_folder(folder, errno, ret_error);

    attn_status status = ATTN_OK;
    for (int i = 0; i < count; i++) {
        if (status == ATTN_OK)
            status = add_model_entry(config, sources, entries[i]->d_name, ret_error);
        free(entries[i]);
    }
    free(entries);
    return status;
}

attn_status load_find_sources(const struct config *config,
                              struct load_sources *ret_sources, attn_error *ret_error) {
    static const char *const demos[] = {"journey", "d2l", "patterns", "stacked"};
    struct load_sources sources = {.items = NULL};
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < config->models.count && status == ATTN_OK; i++)
        status = add_spec(config, &sources, config->models.items[i], ret_error);
    if (status == ATTN_OK && config->model_dir != NULL)
        status = add_folder(config, &sources, ret_error);
    for (size_t i = 0; config->demo && i < sizeof demos / sizeof demos[0]; i++) {
        if (status == ATTN_OK)
            status = add_source(&sources, demos[i], NULL, NULL, ret_error);
    }

    if (status == ATTN_OK)
        *ret_sources = sources;
    else
        load_sources_deinit(&sources);
    return status;
}

bool load_is_of_folder(const struct load_source *source) {
    return source->path != NULL && source->spec == NULL;
}

bool load_is_same(const struct load_source *a, const struct load_source *b) {
    if (a->path == NULL || b->path == NULL)
        return a->path == b->path && strcmp(a->name, b->name) == 0;
    return strcmp(a->name, b->name) == 0 && strcmp(a->path, b->path) == 0 &&
           a->spec == b->spec && a->file.st_ino != 0 &&
           a->file.st_ino == b->file.st_ino && a->file.st_dev == b->file.st_dev &&
           a->file.st_size == b->file.st_size &&
           a->file.st_mtim.tv_sec == b->file.st_mtim.tv_sec &&
           a->file.st_mtim.tv_nsec == b->file.st_mtim.tv_nsec;
}

/* --- one model --- */

/* Sets what its --model says about the model, which *ret_spec owns, or nothing. */
static attn_status read_spec(const struct load_source *source,
                             struct model_spec *ret_spec, attn_error *ret_error) {
    *ret_spec = (struct model_spec){.text = NULL};
    if (source->spec == NULL)
        return ATTN_OK;
    return model_spec_parse(source->spec, ret_spec, ret_error);
}

/* Says why the folder of a source without a layer could not be opened before. */
static attn_status refuse_folder_source(const struct load_source *source,
                                        const struct model_spec *given,
                                        const attn_engine_options *engine,
                                        bool *ret_is_file, attn_error *ret_error) {
    struct model_spec spec = *given;
    struct folder *folder;
    size_t bytes = 0;

    spec.path = source->path;
    attn_status status = folder_open_to_serve(&spec, engine, &bytes, &folder, ret_error);
    *ret_is_file = status == ATTN_OK && folder == NULL;
    if (status != ATTN_OK || folder == NULL)
        return status;
    folder_close(folder);
    return error_set(ret_error, ATTN_E_IO, "%.160s: it changed while it was read",
                     source->path);
}

/* Loads a file of one layer, or a layer of a folder. */
static attn_status load_path(const struct load_source *source,
                             const struct model_spec *spec,
                             const attn_engine_options *engine, attn_model **ret_model,
                             attn_error *ret_error) {
    bool is_file;

    if (source->folder != NULL)
        return folder_create_model(source->folder, source->layer, source->name, engine,
                                   ret_model, ret_error);
    attn_status status = refuse_folder_source(source, spec, engine, &is_file, ret_error);
    if (!is_file)
        return status;
    status = attn_model_load(source->name, source->path, &spec->options, engine,
                             ret_model, ret_error);
    return folder_hint(source->path, status, ret_error);
}

attn_status load_model(const struct config *config, const struct load_source *source,
                       attn_model **ret_model, attn_error *ret_error) {
    struct model_spec spec;
    attn_status status = check_name(source->name, source->path, ret_error);
    if (status == ATTN_OK)
        status = read_spec(source, &spec, ret_error);
    if (status != ATTN_OK)
        return status;

    const attn_engine_options engine = load_engine_options(config, spec.precision, true);
    status = source->path == NULL
                 ? attn_model_demo(source->name, &engine, ret_model, ret_error)
                 : load_path(source, &spec, &engine, ret_model, ret_error);
    model_spec_deinit(&spec);
    return status;
}

attn_status load_measure(const struct config *config, const struct load_source *source,
                         attn_model_info *ret_info, attn_error *ret_error) {
    struct model_spec spec;
    attn_model_info info = {.bytes = 0};
    attn_status status = read_spec(source, &spec, ret_error);
    if (status != ATTN_OK)
        return status;

    const attn_engine_options engine = load_engine_options(config, spec.precision, true);
    bool is_file = false;
    if (source->folder != NULL)
        status = folder_describe_model(source->folder, source->layer, &engine, &info,
                                       ret_error);
    else if (source->path != NULL)
        status = refuse_folder_source(source, &spec, &engine, &is_file, ret_error);
    if (is_file)
        status = checkpoint_describe(source->path, &spec.options, &engine, false, &info,
                                     ret_error);
    model_spec_deinit(&spec);
    if (status == ATTN_OK)
        *ret_info = info;
    return status;
}

const char *load_hide_path(const struct load_source *source, const char *reason) {
    const char *path = source->path != NULL ? source->path : "";
    size_t name = strlen(path); /* where the last part of the path begins */
    while (name > 0 && path[name - 1] == '/')
        name--;
    while (name > 0 && path[name - 1] != '/')
        name--;
    if (name == 0)
        return reason;

    const char *whole = strstr(reason, path);
    if (whole != NULL)
        return whole + name;
    const char *end = strstr(reason, path + name - 1); /* of a path that is cut */
    return end != NULL ? end + 1 : reason;
}

static bool copy_text(const char *text, char **ret_copy) {
    *ret_copy = text != NULL ? strdup(text) : NULL;
    return text == NULL || *ret_copy != NULL;
}

bool load_source_copy(const struct load_source *source, struct load_source *ret_copy) {
    *ret_copy = (struct load_source){.spec = source->spec, .file = source->file};
    return copy_text(source->name, &ret_copy->name) &&
           copy_text(source->path, &ret_copy->path) &&
           copy_text(source->part, &ret_copy->part);
}

void load_source_close(struct load_source *source) {
    folder_close(source->folder);
    source->folder = NULL;
}

void load_source_deinit(struct load_source *source) {
    load_source_close(source);
    free(source->name);
    free(source->path);
    free(source->part);
    *source = (struct load_source){.name = NULL};
}

void load_sources_deinit(struct load_sources *sources) {
    for (size_t i = 0; i < sources->count; i++)
        load_source_deinit(&sources->items[i]);
    free(sources->items);
    *sources = (struct load_sources){.items = NULL};
}
