/* SPDX-License-Identifier: Apache-2.0 */
/* load.c: reads --model, --model-dir and --demo. */
#include "models/load.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/size.h"
#include "math/model.h"
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

/* How long each worker computes with new models: before attnd serves, and while requests
 * wait for it. */
#define WARM_UP_AT_START_NS ((int64_t)1000000000)
#define WARM_UP_NS          ((int64_t)100000000)
#define WARM_UP_WAIT_NS     ((int64_t)1000000000) /* for workers that are busy */

struct found_models {
    const struct config *config;
    struct model_list list;
    size_t bytes; /* that all layers of folders need when they are served */
};

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

static attn_status no_memory(attn_error *ret_error) {
    return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
}

attn_status load_specs(const struct config *config, struct model_spec **ret_specs,
                       attn_error *ret_error) {
    const size_t count = config->models.count;
    struct model_spec *specs = calloc(count + 1, sizeof *specs);
    if (specs == NULL)
        return no_memory(ret_error);

    attn_status status = ATTN_OK;
    for (size_t i = 0; i < count && status == ATTN_OK; i++) {
        status = model_spec_parse(config->models.items[i], true, &specs[i], ret_error);
        if (status == ATTN_OK)
            status = check_name(specs[i].name, "--model", ret_error);
    }
    if (status == ATTN_OK)
        *ret_specs = specs;
    else
        load_specs_free(specs, count);
    return status;
}

void load_specs_free(struct model_spec *specs, size_t count) {
    for (size_t i = 0; i < count && specs != NULL; i++)
        model_spec_deinit(&specs[i]);
    free(specs);
}

/* --- what the options name --- */

/* Adds an entry of what `asked` names, with its file where there is one. Returns NULL
 * when memory is short. */
static struct model_entry *add_entry(struct found_models *found, const char *name,
                                     const struct model_spec *asked) {
    struct model_entry *entry = list_add(&found->list, name, asked->path);
    if (entry == NULL)
        return NULL;
    entry->spec = asked->text != NULL ? asked : NULL; /* that of --model-dir has none */
    if (stat(asked->path, &entry->file) != 0)
        entry->file = (struct stat){0}; /* load_model() says why */
    return entry;
}

/* Adds the layers of a folder, which `asked` names. */
static attn_status add_layers(struct found_models *found, const struct model_spec *asked,
                              struct folder *folder, attn_error *ret_error) {
    struct stat state;
    size_t count;

    folder_find_state(asked->path, &state);
    const struct layer *layers = folder_get_layers(folder, &count);
    for (size_t i = 0; i < count; i++) {
        char name[NAME_MAX + 1];
        snprintf(name, sizeof name, "%s.%s", asked->name, layers[i].part);
        struct model_entry *entry = add_entry(found, name, asked);
        if (entry == NULL)
            return no_memory(ret_error);
        entry->is_layer = true;
        entry->layer = i;
        entry->folder = folder_share(folder);
        entry->file = state;
    }
    return ATTN_OK;
}

/* Adds what `asked` names: one entry for a file, or for each layer of a folder. A folder
 * that cannot be served is one entry, with the error. */
static attn_status add_asked(struct found_models *found, const struct model_spec *asked,
                             attn_error *ret_error) {
    const attn_engine_options engine =
        compute_engine_options(&found->config->compute, asked->precision, true);
    struct folder *folder = NULL;
    attn_error error = {.status = ATTN_OK};

    attn_status status = folder_open_spec(asked, &folder, &error);
    if (folder != NULL)
        status = folder_check_models(folder, &engine, machine_memory(""), &found->bytes,
                                     &error);
    if (status == ATTN_OK && folder != NULL)
        status = add_layers(found, asked, folder, &error);
    bool has_layers = status == ATTN_OK && folder != NULL;
    folder_close(folder);
    if (status == ATTN_E_NOMEM) /* which is not the folder's fault */
        return error_set(ret_error, status, "%s", error.text);
    if (has_layers)
        return ATTN_OK;

    struct model_entry *entry = add_entry(found, asked->name, asked);
    if (entry == NULL)
        return no_memory(ret_error);
    entry->error = error;
    return ATTN_OK;
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
static attn_status add_model_entry(struct found_models *found, const char *file,
                                   attn_error *ret_error) {
    const char *dir = found->config->model_dir;
    char path[PATH_MAX], name[NAME_MAX + 1];
    const struct model_spec asked = {.name = name, .path = path};

    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model-dir: the path of %s is too long", file);
    snprintf(name, sizeof name, "%s", file);
    if (!folder_is_at(path)) {
        if (!has_model_suffix(file))
            return ATTN_OK;
        name[strlen(name) - strlen(MODEL_SUFFIX)] = '\0';
    }
    return add_asked(found, &asked, ret_error);
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

static attn_status add_model_dir(struct found_models *found, attn_error *ret_error) {
    const char *folder = found->config->model_dir;
    struct dirent **entries;
    int count = scandir(folder, &entries, is_model_entry, alphasort);
    if (count < 0)
        return refuse_folder(folder, errno, ret_error);

    attn_status status = ATTN_OK;
    for (int i = 0; i < count; i++) {
        if (status == ATTN_OK)
            status = add_model_entry(found, entries[i]->d_name, ret_error);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Only the first entry of a name can be loaded. */
static void refuse_doubles(struct model_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        struct model_entry *entry = &list->items[i];
        if (list_find(list, entry->name) != entry)
            error_set(&entry->error, ATTN_E_VALUE,
                      "two models are called '%s'; give each a name of its own",
                      entry->name);
    }
}

attn_status load_find(const struct config *config, const struct model_spec *specs,
                      struct model_list *ret_list, attn_error *ret_error) {
    static const char *const demos[] = {"journey", "d2l", "patterns", "stacked"};
    struct found_models found = {.config = config};
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < config->models.count && status == ATTN_OK; i++)
        status = add_asked(&found, &specs[i], ret_error);
    if (status == ATTN_OK && config->model_dir != NULL)
        status = add_model_dir(&found, ret_error);
    for (size_t i = 0; config->demo && i < sizeof demos / sizeof demos[0]; i++) {
        if (status == ATTN_OK && list_add(&found.list, demos[i], NULL) == NULL)
            status = no_memory(ret_error);
    }

    if (status == ATTN_OK) {
        refuse_doubles(&found.list);
        *ret_list = found.list;
    } else {
        list_deinit(&found.list);
    }
    return status;
}

/* --- one model --- */

/* Returns the options of the entry's --model, or none. */
static const struct model_spec *spec_of(const struct model_entry *entry) {
    static const struct model_spec no_spec;
    return entry->spec != NULL ? entry->spec : &no_spec;
}

attn_status load_model(const struct config *config, const struct model_entry *entry,
                       attn_model **ret_model, attn_error *ret_error) {
    const struct model_spec *spec = spec_of(entry);
    const attn_engine_options engine =
        compute_engine_options(&config->compute, spec->precision, true);

    attn_status status = check_name(entry->name, entry->path, ret_error);
    if (status != ATTN_OK)
        return status;
    if (entry->error.status != ATTN_OK)
        return error_set(ret_error, entry->error.status, "%s", entry->error.text);
    if (entry->path == NULL)
        return attn_model_demo(entry->name, &engine, ret_model, ret_error);
    if (entry->is_layer)
        return folder_create_model(entry->folder, entry->layer, entry->name, &engine,
                                   ret_model, ret_error);
    status = attn_model_load(entry->name, entry->path, &spec->options, &engine, ret_model,
                             ret_error);
    return folder_hint(entry->path, status, ret_error);
}

void load_log_model(const attn_model *model) {
    const attn_model_info *info = attn_model_get_info(model);
    const char *note = checkpoint_find_note(info);

    if (info->engine.difference > 0 && strcmp(info->engine.name, "native") != 0)
        log_write(LOG_WARN,
                  strcmp(info->engine.name, "openblas") == 0
                      ? "engines disagree, using openblas"
                      : "engines disagree, using plain loops",
                  LOG_TEXT("model", info->name),
                  LOG_NUMBER("parts_per_million_apart",
                             info->engine.difference < 1e3 ? info->engine.difference * 1e6
                                                           : 1e9));
    if (model->engine.fallback != NULL)
        log_write(LOG_WARN, "cpu amx cannot serve the model, using avx512",
                  LOG_TEXT("model", info->name),
                  LOG_TEXT("reason", model->engine.fallback));
    log_write(LOG_INFO, "model", LOG_TEXT("name", info->name),
              LOG_TEXT("layout", info->layout), LOG_NUMBER("heads", info->num_heads),
              LOG_NUMBER("head_size", info->width.head),
              LOG_NUMBER("parameters", info->footprint.parameters),
              LOG_TEXT("engine", info->engine.name), LOG_TEXT("cpu", info->engine.cpu),
              LOG_TEXT("precision", info->engine.precision),
              LOG_NUMBER("memory", info->footprint.memory));
    if (note != NULL)
        log_write(LOG_WARN, "rotation may differ", LOG_TEXT("model", info->name),
                  LOG_TEXT("reason", note));
}

void load_log_note(const struct model_entry *entry) {
    static const char *const events[] = {[FOLDER_NOTE_MASK] = "mask may differ",
                                         [FOLDER_NOTE_NORM] =
                                             "norm before layers is missing"};
    bool is_first = entry->is_layer && entry->layer == 0 && entry->model != NULL;

    for (enum folder_note i = 0; is_first && i < FOLDER_NUM_NOTES; i++) {
        const char *note = folder_get_note(entry->folder, i);
        if (note != NULL)
            log_write(LOG_WARN, events[i], LOG_TEXT("model", entry->name),
                      LOG_TEXT("reason", note));
    }
}

bool load_may_skip(const struct config *config, const struct model_entry *entry,
                   attn_status status) {
    if (entry->path == NULL || entry->spec != NULL || status == ATTN_E_NOMEM)
        return false;
    return config->skip_bad_models ||
           (entry->error.status == ATTN_E_UNSUPPORTED && !folder_has_family(entry->path));
}

/* Finds how many bytes load_model() would need, from the header of the file alone: sets
 * memory, which the model would hold, and bytes, which its weights are while they are
 * loaded. Both are 0 for a built-in model. Errors are as in load_model(). */
static attn_status measure_entry(const struct config *config,
                                 const struct model_entry *entry,
                                 attn_model_info *ret_info, attn_error *ret_error) {
    const struct model_spec *spec = spec_of(entry);
    const attn_engine_options engine =
        compute_engine_options(&config->compute, spec->precision, true);
    size_t count;

    *ret_info = (attn_model_info){.footprint.bytes = 0};
    if (entry->error.status != ATTN_OK)
        return error_set(ret_error, entry->error.status, "%s", entry->error.text);
    if (entry->is_layer)
        return model_describe(
            &folder_get_layers(entry->folder, &count)[entry->layer].info, &engine,
            ret_info, ret_error);
    if (entry->path == NULL)
        return ATTN_OK;
    return checkpoint_describe(entry->path, &spec->options, &engine, false, ret_info,
                               ret_error);
}

attn_status load_check_fit(const struct config *config, const struct model_list *list,
                           attn_error *ret_error) {
    size_t memory = machine_memory(""), sum = 0;

    for (size_t i = 0; i < list->count; i++) {
        attn_model_info info;
        if (measure_entry(config, &list->items[i], &info, NULL) == ATTN_OK &&
            info.footprint.bytes <= memory)
            size_add_saturating(&sum, info.footprint.memory);
    }
    size_t all = sum;
    size_add_saturating(&all, config->capture_memory);
    size_add_saturating(&all, config->max_memory);
    if (all <= memory)
        return ATTN_OK;
    if (sum <= memory)
        return error_set(ret_error, ATTN_E_NOMEM,
                         "the models need %zu bytes, --capture-memory %zu and "
                         "--max-memory %zu, but this process may use %zu; lower %s",
                         sum, config->capture_memory, config->max_memory, memory,
                         config->max_memory >= config->capture_memory
                             ? "--max-memory"
                             : "--capture-memory");
    return error_set(ret_error, ATTN_E_NOMEM,
                     "the models need %zu bytes together, but this process may use %zu; "
                     "name fewer of them, or use --precision bf16",
                     sum, memory);
}

attn_status load_check_free(const struct config *config, const struct model_entry *entry,
                            size_t kept, attn_error *ret_error) {
    attn_model_info info;
    attn_status status = measure_entry(config, entry, &info, ret_error);
    if (status != ATTN_OK)
        return status;

    size_t bytes = size_max(info.footprint.bytes, info.footprint.memory); /* to load it */
    size_t machine = machine_free_memory("");
    size_t left = machine > kept ? machine - kept : 0;
    if (bytes <= left)
        return ATTN_OK;
    return error_set(
        ret_error, ATTN_E_NOMEM,
        "it needs %zu bytes, and of the %zu that are free, --max-memory and "
        "--capture-memory keep %zu for requests; free memory, or lower --max-memory",
        bytes, machine, kept);
}

/* --- before they are served --- */

/* New models, which each worker tries. */
struct warm_up {
    const struct model_list *list;
    size_t num_new; /* of its models */
    int64_t longest_ns;
};

/* sched_call_on_each() */
static void warm_up_worker(void *context) {
    const struct warm_up *warm_up = context;
    const struct model_list *list = warm_up->list;
    const int64_t begun = clock_now_ns();
    size_t count = 0;
    double flops, ns;

    for (size_t i = 0; i < list->count && clock_now_ns() - begun < warm_up->longest_ns;
         i++) {
        if (!list->items[i].is_new)
            continue;
        model_try(list->items[i].model, &flops, &ns);
        count++;
    }
    log_write(LOG_DEBUG, "worker warmed up", LOG_NUMBER("models", count),
              LOG_NUMBER("of", warm_up->num_new),
              LOG_NUMBER("microseconds", (clock_now_ns() - begun) / 1000));
}

void load_warm_up(const struct model_list *list, struct sched_pool *pool, bool at_start) {
    struct warm_up warm_up = {.list = list,
                              .longest_ns = at_start ? WARM_UP_AT_START_NS : WARM_UP_NS};

    for (size_t i = 0; i < list->count; i++)
        warm_up.num_new += list->items[i].is_new;
    if (warm_up.num_new > 0 && pool != NULL)
        sched_call_on_each(pool, warm_up_worker, &warm_up, WARM_UP_WAIT_NS);
}
