/* SPDX-License-Identifier: Apache-2.0 */
/* load.c: loads models from --model, --model-dir and --demo, each to serve with its
 * engine. */
#include "cli/load.h"

#include "base/error.h"
#include "base/log.h"
#include "config/model_spec.h"
#include "config/options.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
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

/* Adds a model to the list, and takes ownership of it, even on failure. */
static attn_status add_model(struct models *models, attn_model *model,
                             attn_error *ret_error) {
    const char *name = attn_model_get_info(model)->name;

    for (size_t i = 0; i < models->count; i++) {
        if (strcmp(attn_model_get_info(models->items[i])->name, name) != 0)
            continue;
        error_set(ret_error, ATTN_E_VALUE,
                  "two models are called '%s'; give each a name of its own", name);
        attn_model_destroy(model);
        return ATTN_E_VALUE;
    }

    attn_model **items = realloc(models->items, (models->count + 1) * sizeof *items);
    if (items == NULL) {
        attn_model_destroy(model);
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    }
    models->items = items;
    items[models->count++] = model;
    return ATTN_OK;
}

static attn_status load_spec(const struct config *config, struct models *models,
                             const char *text, attn_error *ret_error) {
    struct model_spec spec;
    attn_model *model;
    attn_status status = model_spec_parse(text, &spec, ret_error);
    if (status != ATTN_OK)
        return status;

    const attn_engine_options engine = load_engine_options(config, spec.precision, true);
    status =
        attn_model_load(spec.name, spec.path, &spec.options, &engine, &model, ret_error);
    if (status == ATTN_OK)
        status = add_model(models, model, ret_error);
    model_spec_deinit(&spec);
    return status;
}

static int is_model_file(const struct dirent *entry) {
    size_t size = strlen(entry->d_name), suffix = strlen(MODEL_SUFFIX);
    return size > suffix && strcmp(entry->d_name + size - suffix, MODEL_SUFFIX) == 0;
}

static attn_status load_file(const struct config *config, struct models *models,
                             const char *file, attn_error *ret_error) {
    const attn_engine_options engine = load_engine_options(config, NULL, true);
    char path[PATH_MAX], name[NAME_MAX + 1];
    attn_model *model;

    snprintf(name, sizeof name, "%.*s", (int)(strlen(file) - strlen(MODEL_SUFFIX)), file);
    if (snprintf(path, sizeof path, "%s/%s", config->model_dir, file) >= (int)sizeof path)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model-dir: the path of %s is too long", file);
    attn_status status = check_name(name, path, ret_error);
    if (status == ATTN_OK)
        status = attn_model_load(name, path, NULL, &engine, &model, ret_error);
    return status == ATTN_OK ? add_model(models, model, ret_error) : status;
}

/* The same, but --skip-bad-models leaves out a file that is at fault. A lack of memory is
 * not the file's fault. */
static attn_status load_or_skip_file(const struct config *config, struct models *models,
                                     const char *file, attn_error *ret_error) {
    attn_error error;
    attn_status status = load_file(config, models, file, &error);

    if (status == ATTN_OK)
        return ATTN_OK;
    if (!config->skip_bad_models || status == ATTN_E_NOMEM)
        return error_set(ret_error, status, "%s", error.text);
    log_write(LOG_WARN, "model skipped", LOG_TEXT("file", file),
              LOG_TEXT("reason", error.text));
    models->num_skipped++;
    return ATTN_OK;
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

static attn_status load_folder(const struct config *config, struct models *models,
                               attn_error *ret_error) {
    struct dirent **entries;
    int count = scandir(config->model_dir, &entries, is_model_file, alphasort);
    if (count < 0)
        return refuse_folder(config->model_dir, errno, ret_error);

    attn_status status = ATTN_OK;
    for (int i = 0; i < count; i++) {
        if (status == ATTN_OK)
            status = load_or_skip_file(config, models, entries[i]->d_name, ret_error);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Refuses a folder that gives no model, where no other option gives one either. */
static attn_status refuse_no_models(const struct config *config,
                                    const struct models *models, attn_error *ret_error) {
    if (models->num_skipped > 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model-dir: all %zu *" MODEL_SUFFIX " in %s were skipped; "
                         "correct one of them, the log says how",
                         models->num_skipped, config->model_dir);
    return error_set(ret_error, ATTN_E_VALUE, "--model-dir: no *" MODEL_SUFFIX " in %s",
                     config->model_dir);
}

static attn_status load_demos(const struct config *config, struct models *models,
                              attn_error *ret_error) {
    static const char *const names[] = {"journey", "d2l", "patterns", "stacked"};
    const attn_engine_options engine = load_engine_options(config, NULL, true);
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < sizeof names / sizeof names[0] && status == ATTN_OK; i++) {
        attn_model *model;
        status = attn_model_demo(names[i], &engine, &model, ret_error);
        if (status == ATTN_OK)
            status = add_model(models, model, ret_error);
    }
    return status;
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

attn_status load_models(const struct config *config, struct models *ret_models,
                        attn_error *ret_error) {
    struct models models = {.items = NULL};
    attn_status status = ATTN_OK;

    for (size_t i = 0; i < config->models.count && status == ATTN_OK; i++)
        status = load_spec(config, &models, config->models.items[i], ret_error);
    if (status == ATTN_OK && config->model_dir != NULL)
        status = load_folder(config, &models, ret_error);
    if (status == ATTN_OK && config->demo)
        status = load_demos(config, &models, ret_error);
    if (status == ATTN_OK && models.count == 0)
        status = refuse_no_models(config, &models, ret_error);

    if (status != ATTN_OK) {
        load_models_deinit(&models);
        return status;
    }
    if (models.num_skipped > 0)
        log_write(LOG_WARN, "models skipped", LOG_NUMBER("skipped", models.num_skipped),
                  LOG_NUMBER("loaded", models.count));
    *ret_models = models;
    return ATTN_OK;
}

void load_models_deinit(struct models *models) {
    for (size_t i = 0; i < models->count; i++)
        attn_model_destroy(models->items[i]);
    free(models->items);
    *models = (struct models){.items = NULL};
}
