/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue.c: compares what is loaded with what the options name now. */
#include "models/catalogue.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "models/team.h"
#include "models/warm_up.h"
#include "wire/json/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- publishing --- */

/* Logs which engine serves the model. */
static void log_model(const attn_model *model) {
    const attn_model_info *info = attn_model_get_info(model);

    if (info->difference > 0 && strcmp(info->engine, "openblas") == 0)
        log_write(LOG_WARN, "engines disagree, using openblas",
                  LOG_TEXT("model", info->name),
                  LOG_NUMBER("parts_per_million_apart",
                             info->difference < 1e3 ? info->difference * 1e6 : 1e9));
    log_write(LOG_INFO, "model", LOG_TEXT("name", info->name),
              LOG_TEXT("layout", info->layout), LOG_NUMBER("heads", info->num_heads),
              LOG_NUMBER("head_size", info->head_size),
              LOG_NUMBER("parameters", info->parameters),
              LOG_TEXT("engine", info->engine), LOG_TEXT("cpu", info->cpu),
              LOG_TEXT("precision", info->precision), LOG_NUMBER("memory", info->memory));
}

/* Publishes one generation of the entries. */
static attn_status publish_entries(const struct catalogue *catalogue,
                                   struct catalogue_entries *entries) {
    attn_model **models = calloc(entries->count + 1, sizeof *models);
    struct wire_oip_listing *listings = calloc(entries->count + 1, sizeof *listings);
    struct generation_set set = {models, 0, listings, 0};
    attn_status status = ATTN_E_NOMEM;

    warm_up_workers(catalogue->pool, entries);
    for (size_t i = 0; i < entries->count && models != NULL && listings != NULL; i++) {
        const struct catalogue_entry *entry = &entries->items[i];
        struct wire_oip_listing *listing = &listings[set.num_listings++];
        snprintf(listing->name, sizeof listing->name, "%s", entry->source.name);
        memcpy(listing->reason, entry->reason, sizeof listing->reason);
        listing->loaded = entry->model != NULL;
        if (entry->model != NULL)
            models[set.num_models++] = entry->model;
    }
    if (models != NULL && listings != NULL)
        status = generation_publish(catalogue->generations, &set);
    free(models);
    free(listings);

    for (size_t i = 0; i < entries->count && status == ATTN_OK; i++) {
        entries->items[i].is_new = false;
        load_source_close(&entries->items[i].source);
    }
    return status;
}

attn_status catalogue_publish(struct catalogue *catalogue) {
    return publish_entries(catalogue, &catalogue->entries);
}

/* --- at start --- */

/* Loads an entry, unless one before it has its name. */
static attn_status load_first(const struct config *config,
                              struct catalogue_entries *entries, size_t index,
                              attn_error *ret_error) {
    struct catalogue_entry *entry = &entries->items[index];
    if (find_entry(entries->items, index, entry->source.name) != NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "two models are called '%s'; give each a name of its own",
                         entry->source.name);

    attn_status status = load_model(config, &entry->source, &entry->model, ret_error);
    entry->is_new = status == ATTN_OK;
    return status;
}

/* team_work.run: the same, but --skip-bad-models leaves out a file of --model-dir that is
 * at fault. A lack of memory is not the file's fault. */
static attn_status load_or_skip(void *context, size_t index, attn_error *ret_error) {
    struct catalogue *catalogue = context;
    struct catalogue_entry *entry = &catalogue->entries.items[index];
    attn_error error;
    attn_status status =
        load_first(catalogue->config, &catalogue->entries, index, &error);

    if (status == ATTN_OK)
        return ATTN_OK;
    if (!catalogue->config->skip_bad_models || status == ATTN_E_NOMEM ||
        !load_is_of_folder(&entry->source))
        return error_set(ret_error, status, "%s", error.text);
    log_write(LOG_WARN, "model skipped",
              LOG_TEXT("file", strrchr(entry->source.path, '/') + 1),
              LOG_TEXT("reason", error.text));
    set_reason(entry, error.text);
    return ATTN_OK;
}

/* Warns of a folder without a model, where no other option gives one either: it may get
 * some later. Refuses one whose models are all bad. */
static attn_status check_any_model(const struct catalogue *catalogue,
                                   attn_error *ret_error) {
    const char *folder = catalogue->config->model_dir;

    if (count_loaded(&catalogue->entries) > 0)
        return ATTN_OK;
    if (catalogue->num_skipped > 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model-dir: all %zu models in %s were skipped; "
                         "correct one of them, the log says how",
                         catalogue->num_skipped, folder);
    log_write(LOG_WARN, "no model yet", LOG_TEXT("model_dir", folder),
              LOG_TEXT("remedy", "put *.safetensors files, or folders with a "
                                 "config.json, there, and send SIGHUP"));
    return ATTN_OK;
}

/* team_work.report */
static void log_progress(void *context, size_t done) {
    const struct catalogue *catalogue = context;
    log_write(LOG_INFO, "loading", LOG_NUMBER("loaded", done),
              LOG_NUMBER("models", catalogue->entries.count));
}

attn_status catalogue_load_all(struct catalogue *catalogue, attn_error *ret_error) {
    struct catalogue_entries *entries = &catalogue->entries;
    attn_status status = find_entries(catalogue->config, entries, ret_error);

    if (status == ATTN_OK)
        status = check_entries_fit(catalogue->config, entries, ret_error);
    if (status == ATTN_OK)
        status = team_run(&(struct team_work){.count = entries->count,
                                              .run = load_or_skip,
                                              .report = log_progress,
                                              .context = catalogue},
                          ret_error);
    if (status != ATTN_OK)
        return status;
    catalogue->num_skipped = entries->count - count_loaded(entries);
    status = check_any_model(catalogue, ret_error);
    if (status != ATTN_OK)
        return status;

    if (catalogue->num_skipped > 0)
        log_write(LOG_WARN, "models skipped",
                  LOG_NUMBER("skipped", catalogue->num_skipped),
                  LOG_NUMBER("loaded", count_loaded(entries)));
    for (size_t i = 0; i < entries->count; i++) {
        if (entries->items[i].model != NULL)
            log_model(entries->items[i].model);
    }
    return ATTN_OK;
}

/* --- while attnd serves --- */

/* Checks that the model fits in what is free. What --max-memory lets requests take is not
 * free, and what is served already is not, since requests may use it still. */
static attn_status check_memory(const struct catalogue *catalogue,
                                const struct load_source *source, attn_error *ret_error) {
    attn_model_info info;
    attn_status status = load_measure(catalogue->config, source, &info, ret_error);
    if (status != ATTN_OK)
        return status;

    size_t bytes = info.bytes > info.memory ? info.bytes : info.memory; /* to load it */
    size_t machine = machine_free_memory("");
    size_t kept = sched_budget_left(catalogue->budget);
    size_t left = machine > kept ? machine - kept : 0;
    if (bytes <= left)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_NOMEM,
                     "it needs %zu bytes, and of the %zu that are free, --max-memory "
                     "keeps %zu for requests; free memory, or lower --max-memory",
                     bytes, machine, kept);
}

/* Loads a model when there is memory for it. Headers are watched as in
 * find_entries(). */
static attn_status load_checked(const struct catalogue *catalogue,
                                const struct load_source *source, attn_model **ret_model,
                                attn_error *ret_error) {
    wire_json_watch();
    attn_status status = check_memory(catalogue, source, ret_error);
    if (status == ATTN_OK)
        status = load_model(catalogue->config, source, ret_model, ret_error);
    if (status == ATTN_OK && wire_json_ran_short()) {
        attn_model_destroy(*ret_model);
        *ret_model = NULL;
        status = error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    }
    return status;
}

/* Loads an entry while others are served; logs the model, or why there is none. */
static attn_status load_entry(const struct catalogue *catalogue,
                              struct catalogue_entry *entry, attn_error *ret_error) {
    attn_status status =
        load_checked(catalogue, &entry->source, &entry->model, ret_error);

    if (status == ATTN_OK) {
        entry->is_new = true;
        if (!catalogue->is_quiet)
            log_model(entry->model);
        return status;
    }

    set_reason(entry, ret_error->text);
    if (!catalogue->is_quiet)
        log_write(LOG_WARN, "model not loaded", LOG_TEXT("name", entry->source.name),
                  LOG_TEXT("reason", ret_error->text));
    return status;
}

/* Lets an entry keep the model of the same name, which was made of another file. */
static void keep_model(struct catalogue_entry *entry, const struct catalogue_entry *old) {
    entry->model = old->model;
    entry->source.file = old->source.file;
}

/* Gives an entry what is served of its name if it is unchanged; otherwise loads it. */
static void renew_entry(const struct catalogue *catalogue,
                        struct catalogue_entry *entry) {
    const struct catalogue_entries *known = &catalogue->entries;
    const struct catalogue_entry *old =
        find_entry(known->items, known->count, entry->source.name);
    attn_error error;

    if (old != NULL && old->unloaded) {
        entry->unloaded = true;
        set_reason(entry, old->reason);
    } else if (old != NULL && old->model != NULL &&
               load_is_same(&old->source, &entry->source)) {
        entry->model = old->model;
    } else if (load_entry(catalogue, entry, &error) != ATTN_OK && old != NULL) {
        keep_model(entry, old);
    }
}

/* Lets served layers of a folder stay when it can be read no more. */
static attn_status keep_layers(const struct catalogue_entries *known, const char *path,
                               struct catalogue_entries *entries) {
    for (size_t i = 0; i < known->count; i++) {
        const struct catalogue_entry *old = &known->items[i];
        if (old->source.part == NULL || strcmp(old->source.path, path) != 0 ||
            find_entry(entries->items, entries->count, old->source.name) != NULL)
            continue;
        struct catalogue_entry *entry = add_entry(entries);
        if (entry == NULL || !load_source_copy(&old->source, &entry->source))
            return ATTN_E_NOMEM;
        entry->model = old->model;
        entry->unloaded = old->unloaded;
        memcpy(entry->reason, old->reason, sizeof entry->reason);
    }
    return ATTN_OK;
}

/* Does so for all folders that could not be listed: each is an entry without a part. */
static attn_status keep_all_layers(const struct catalogue_entries *known,
                                   struct catalogue_entries *entries) {
    size_t count = entries->count;
    for (size_t i = 0; i < count; i++) {
        const struct catalogue_entry *entry = &entries->items[i];
        const char *path = entry->source.path;
        if (entry->model == NULL && path != NULL && entry->source.part == NULL &&
            keep_layers(known, path, entries) != ATTN_OK)
            return ATTN_E_NOMEM;
    }
    return ATTN_OK;
}

/* Removes entries whose name one before them has; returns how many. */
static size_t drop_doubles(struct catalogue_entries *entries) {
    size_t count = 0, found = entries->count;
    for (size_t i = 0; i < entries->count; i++) {
        struct catalogue_entry entry = entries->items[i];
        if (find_entry(entries->items, count, entry.source.name) == NULL) {
            entries->items[count++] = entry;
            continue;
        }
        log_write(LOG_WARN, "model not loaded", LOG_TEXT("name", entry.source.name),
                  LOG_TEXT("reason", "two models are called so; give each its own name"));
        load_source_deinit(&entry.source);
    }
    entries->count = count;
    return found - count;
}

/* What a reload does with the models that are configured. */
struct reload_counts {
    size_t kept, added, replaced, removed;
    size_t failed;   /* not loaded as their files are now, whatever is served instead */
    size_t unloaded; /* by a request, and left so */
};

/* Counts entries that are not published yet; `failed` begins with those left out. */
static struct reload_counts count_changes(const struct catalogue_entries *before,
                                          const struct catalogue_entries *entries,
                                          size_t failed) {
    struct reload_counts counts = {.failed = failed};

    for (size_t i = 0; i < entries->count; i++) {
        const struct catalogue_entry *entry = &entries->items[i];
        const struct catalogue_entry *old =
            find_entry(before->items, before->count, entry->source.name);
        if (entry->unloaded)
            counts.unloaded++;
        else if (entry->reason[0] != '\0')
            counts.failed++;
        else if (!entry->is_new)
            counts.kept++;
        else if (old != NULL && old->model != NULL)
            counts.replaced++;
        else
            counts.added++;
    }
    return counts;
}

/* Makes the entries the catalogue's, once they are published, and logs what changed. */
static void replace_entries(struct catalogue *catalogue,
                            struct catalogue_entries *entries,
                            struct reload_counts counts) {
    struct catalogue_entries before = catalogue->entries;

    for (size_t i = 0; i < before.count; i++) {
        const char *name = before.items[i].source.name;
        if (before.items[i].model != NULL &&
            find_entry(entries->items, entries->count, name) == NULL) {
            counts.removed++;
            log_write(LOG_INFO, "model removed", LOG_TEXT("name", name));
        }
    }
    log_write(LOG_INFO, "models reloaded", LOG_NUMBER("kept", counts.kept),
              LOG_NUMBER("added", counts.added), LOG_NUMBER("replaced", counts.replaced),
              LOG_NUMBER("removed", counts.removed), LOG_NUMBER("failed", counts.failed),
              LOG_NUMBER("unloaded", counts.unloaded));
    if (counts.failed > 0)
        generations_count_failed_reload(catalogue->generations);
    catalogue->entries = *entries;
    deinit_entries(&before);
}

void catalogue_reload(struct catalogue *catalogue, const atomic_bool *stopping) {
    struct catalogue_entries entries = {NULL, 0};
    attn_error error = {ATTN_OK, ""};

    find_entries(catalogue->config, &entries, &error);
    size_t num_doubles = drop_doubles(&entries);
    for (size_t i = 0; i < entries.count && !atomic_load(stopping); i++)
        renew_entry(catalogue, &entries.items[i]);

    if (atomic_load(stopping)) {
        deinit_entries(&entries);
        return;
    }
    if (keep_all_layers(&catalogue->entries, &entries) != ATTN_OK)
        error_set(&error, ATTN_E_NOMEM, "out of memory");
    if (error.status == ATTN_OK && count_loaded(&entries) == 0 &&
        count_loaded(&catalogue->entries) > 0)
        error_set(&error, ATTN_E_VALUE, "no model would be left");
    const struct reload_counts counts =
        count_changes(&catalogue->entries, &entries, num_doubles);
    if (error.status == ATTN_OK && publish_entries(catalogue, &entries) != ATTN_OK)
        error_set(&error, ATTN_E_NOMEM, "out of memory");
    if (error.status == ATTN_OK) {
        replace_entries(catalogue, &entries, counts);
        return;
    }
    log_write(LOG_WARN, "models not reloaded, the former ones are kept",
              LOG_TEXT("reason", error.text));
    generations_count_failed_reload(catalogue->generations);
    deinit_entries(&entries);
}

/* --- one model, by request --- */

static bool refuse_change(struct wire_problem *problem, const char *verb,
                          const char *name, const char *reason) {
    return wire_problem_set(problem, WIRE_E_MODEL_NOT_CHANGED, "model",
                            "failed to %s '%s': %s", verb, name, reason);
}

/* Refuses a name that no entry has. That of a folder is none: its layers are. */
static bool refuse_unknown(const struct catalogue_entries *known, const char *name,
                           struct wire_problem *problem) {
    size_t size = strlen(name);
    for (size_t i = 0; i < known->count; i++) {
        const struct load_source *source = &known->items[i].source;
        if (source->part != NULL && strncmp(source->name, name, size) == 0 &&
            source->name[size] == '.')
            return wire_problem_set(problem, WIRE_E_UNKNOWN_MODEL, "model",
                                    "'%s' is a folder; name its layers one by one, such "
                                    "as '%s'",
                                    name, source->name);
    }
    return wire_problem_set(problem, WIRE_E_UNKNOWN_MODEL, "model",
                            "neither --model nor a file of --model-dir is called '%s'; "
                            "POST /v2/repository/index lists what is configured",
                            name);
}

static void swap_entries(struct catalogue_entry *a, struct catalogue_entry *b) {
    struct catalogue_entry was = *a;
    *a = *b;
    *b = was;
}

/* Loads `found` and publishes it in the place of the entry of its name. Either way
 * `found` is then what the catalogue does not need. */
static bool load_found(struct catalogue *catalogue, struct catalogue_entry *found,
                       struct wire_problem *ret_problem) {
    struct catalogue_entries *known = &catalogue->entries;
    const char *name = found->source.name;
    struct catalogue_entry *entry = find_entry(known->items, known->count, name);
    bool is_added = entry == NULL;
    attn_error error;

    if (!is_added && entry->model != NULL && load_is_same(&entry->source, &found->source))
        return true;
    bool loaded = load_entry(catalogue, found, &error) == ATTN_OK;
    if (!loaded)
        refuse_change(ret_problem, "load", name, found->reason);

    if (is_added)
        entry = add_entry(known);
    if (entry == NULL)
        return wire_problem_set_no_memory(ret_problem);
    bool swaps = loaded || is_added; /* else what is served stays, with the reason */
    if (swaps)
        swap_entries(entry, found);
    else
        set_reason(entry, found->reason);
    if (catalogue_publish(catalogue) == ATTN_OK)
        return loaded;

    if (swaps)
        swap_entries(entry, found);
    known->count -= is_added;
    return wire_problem_set_no_memory(ret_problem);
}

bool catalogue_load(struct catalogue *catalogue, const char *name,
                    struct wire_problem *ret_problem) {
    struct catalogue_entries entries = {NULL, 0};
    attn_error error;

    if (find_entries(catalogue->config, &entries, &error) != ATTN_OK)
        return refuse_change(ret_problem, "load", name, error.text);
    struct catalogue_entry *found = find_entry(entries.items, entries.count, name);
    bool done;
    if (found != NULL)
        done = load_found(catalogue, found, ret_problem);
    else if (keep_all_layers(&catalogue->entries, &entries) == ATTN_OK &&
             find_entry(entries.items, entries.count, name) != NULL)
        done = refuse_change(ret_problem, "load", name,
                             "its folder cannot be read now; the log says why");
    else
        done = refuse_unknown(&entries, name, ret_problem);
    deinit_entries(&entries);
    return done;
}

bool catalogue_unload(struct catalogue *catalogue, const char *name,
                      struct wire_problem *ret_problem) {
    struct catalogue_entries *known = &catalogue->entries;
    struct catalogue_entry *entry = find_entry(known->items, known->count, name);
    if (entry == NULL)
        return refuse_unknown(known, name, ret_problem);

    const struct catalogue_entry before = *entry;
    entry->model = NULL;
    entry->unloaded = true;
    set_reason(entry, "unloaded");
    if (catalogue_publish(catalogue) == ATTN_OK) {
        if (!catalogue->is_quiet)
            log_write(LOG_INFO, "model unloaded", LOG_TEXT("name", entry->source.name));
        return true;
    }
    *entry = before;
    return wire_problem_set_no_memory(ret_problem);
}

void catalogue_deinit(struct catalogue *catalogue) {
    deinit_entries(&catalogue->entries);
}
