/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue.c: compares what is loaded with what the options name now. */
#include "models/catalogue.h"

#include "base/error.h"
#include "base/log.h"
#include "captures/store.h"
#include "models/team.h"

#include <string.h>

/* --- loading --- */

/* Publishes `next`, and swaps it with the list of the catalogue. Returns ATTN_E_NOMEM,
 * with nothing changed, when memory is short. The caller drops `next` in both cases. */
static attn_status publish_list(struct catalogue *catalogue, struct model_list *next,
                                attn_error *ret_error) {
    const struct model_list before = catalogue->list;

    load_warm_up(next, catalogue->pool, before.count == 0);
    if (generation_publish(catalogue->generations, next) != ATTN_OK)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    list_close(next);
    catalogue->list = *next;
    *next = before;
    return ATTN_OK;
}

/* Loads an entry. One that cannot be loaded has the error, and keeps what is served of
 * its name. Fails at start only, with the same error, unless attnd may start without the
 * model. Logs what happened; at start, check_start() logs what was loaded. */
static attn_status load_entry(const struct catalogue *catalogue,
                              struct model_entry *entry, attn_error *ret_error) {
    const struct model_entry *old = list_find(&catalogue->list, entry->name);
    attn_error error;
    attn_status status = ATTN_OK;
    if (catalogue->serves) {
        const struct capture_stats captures = captures_get_stats(catalogue->captures);
        generations_free_unused(catalogue->generations);
        status = load_check_free(catalogue->config, entry,
                                 sched_budget_left(catalogue->budget) + captures.limit -
                                     captures.bytes,
                                 &error);
    }
    if (status == ATTN_OK)
        status = load_model(catalogue->config, entry, &entry->model, &error);

    entry->is_new = status == ATTN_OK;
    if (!catalogue->is_quiet)
        load_log_note(entry);
    if (entry->is_new && catalogue->serves && !catalogue->is_quiet)
        load_log_model(entry->model);
    if (entry->is_new)
        return ATTN_OK;
    if (!catalogue->serves && !load_may_skip(catalogue->config, entry, status))
        return error_set(ret_error, status, "%s", error.text);

    entry->error = error;
    if (!catalogue->serves)
        log_write(LOG_WARN, "model skipped",
                  LOG_TEXT("file", strrchr(entry->path, '/') + 1),
                  LOG_TEXT("reason", error.text));
    else if (!catalogue->is_quiet)
        log_write(LOG_WARN, "model not loaded", LOG_TEXT("name", entry->name),
                  LOG_TEXT("reason", error.text));
    if (old != NULL) {
        entry->model = old->model;
        entry->file = old->file;
        entry->unloaded = old->unloaded;
    }
    return ATTN_OK;
}

/* The list that replaces that of the catalogue. */
struct renewal {
    const struct catalogue *catalogue;
    struct model_list next;
};

/* team_work.run: gives an entry what is served of its name if that is unchanged;
 * otherwise loads it. */
static attn_status renew_entry(void *context, size_t index, attn_error *ret_error) {
    struct renewal *renewal = context;
    struct model_entry *entry = &renewal->next.items[index];
    const struct model_entry *old = list_find(&renewal->catalogue->list, entry->name);

    if (old != NULL && old->unloaded) {
        entry->unloaded = true;
        entry->error = old->error;
    } else if (old != NULL && old->model != NULL && entry_is_same(old, entry)) {
        entry->model = old->model;
    } else {
        return load_entry(renewal->catalogue, entry, ret_error);
    }
    return ATTN_OK;
}

/* --- at start: a renewal of an empty list --- */

/* Logs the models that were loaded, and how many were not. Warns of a folder without a
 * model, where no other option gives one either: it may get some later. Refuses one whose
 * models are all bad. Where no option names a model, only requests without one are
 * served. */
static attn_status check_start(const struct config *config, const struct model_list *list,
                               attn_error *ret_error) {
    size_t num_loaded = list_count_loaded(list);
    size_t num_skipped = list->count - num_loaded;

    if (num_loaded == 0 && num_skipped > 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model-dir: all %zu models in %s were skipped; "
                         "correct one of them, the log says how",
                         num_skipped, config->model_dir);
    if (!config_names_models(config))
        log_write(LOG_INFO, "no model",
                  LOG_TEXT("serves", "POST /v1/attention/dot-product"),
                  LOG_TEXT("remedy", "for models, give --model NAME=FILE, --model-dir "
                                     "DIR or --demo"));
    else if (num_loaded == 0)
        log_write(LOG_WARN, "no model yet", LOG_TEXT("model_dir", config->model_dir),
                  LOG_TEXT("remedy", "put *.safetensors files, or folders with a "
                                     "config.json, there, and send SIGHUP"));
    if (num_skipped > 0)
        log_write(LOG_WARN, "models skipped", LOG_NUMBER("skipped", num_skipped),
                  LOG_NUMBER("loaded", num_loaded));
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].model != NULL)
            load_log_model(list->items[i].model);
    }
    return ATTN_OK;
}

/* team_work.report */
static void log_progress(void *context, size_t done, size_t count) {
    (void)context;
    log_write(LOG_INFO, "loading", LOG_NUMBER("loaded", done),
              LOG_NUMBER("models", count));
}

attn_status catalogue_start(struct catalogue *catalogue, attn_error *ret_error) {
    const struct config *config = catalogue->config;
    struct renewal renewal = {.catalogue = catalogue};
    struct model_list *next = &renewal.next;

    attn_status status = load_find(config, catalogue->specs, next, ret_error);
    if (status == ATTN_OK)
        status = load_check_fit(config, next, ret_error);
    if (status == ATTN_OK)
        status = team_run(&(struct team_work){.count = next->count,
                                              .run = renew_entry,
                                              .report = log_progress,
                                              .context = &renewal},
                          ret_error);
    if (status == ATTN_OK)
        status = check_start(config, next, ret_error);
    if (status == ATTN_OK)
        status = publish_list(catalogue, next, ret_error);
    list_deinit(next);
    catalogue->serves = status == ATTN_OK;
    return status;
}

/* --- while attnd serves --- */

/* Logs what has changed from a list to the present one. Returns how many models are not
 * loaded as their files are now, whatever is served instead. */
static size_t log_reload(const struct model_list *before, const struct model_list *list,
                         size_t num_doubles) {
    size_t kept = 0, added = 0, replaced = 0, removed = 0, unloaded = 0;
    size_t failed = num_doubles;

    for (size_t i = 0; i < list->count; i++) {
        const struct model_entry *entry = &list->items[i];
        const struct model_entry *old = list_find(before, entry->name);
        if (entry->unloaded)
            unloaded++;
        else if (entry->error.status != ATTN_OK)
            failed++;
        else if (old == NULL || old->model == NULL)
            added++;
        else
            *(old->model == entry->model ? &kept : &replaced) += 1;
    }
    for (size_t i = 0; i < before->count; i++) {
        const char *name = before->items[i].name;
        if (before->items[i].model == NULL || list_find(list, name) != NULL)
            continue;
        removed++;
        log_write(LOG_INFO, "model removed", LOG_TEXT("name", name));
    }
    log_write(LOG_INFO, "models reloaded", LOG_NUMBER("kept", kept),
              LOG_NUMBER("added", added), LOG_NUMBER("replaced", replaced),
              LOG_NUMBER("removed", removed), LOG_NUMBER("failed", failed),
              LOG_NUMBER("unloaded", unloaded));
    return failed;
}

void catalogue_reload(struct catalogue *catalogue, const atomic_bool *stopping) {
    struct renewal renewal = {.catalogue = catalogue};
    struct model_list *next = &renewal.next;
    size_t num_failed = 1;
    attn_error error;

    attn_status status = load_find(catalogue->config, catalogue->specs, next, &error);
    size_t num_doubles = list_drop_doubles(next);
    for (size_t i = 0; i < next->count && !atomic_load(stopping); i++)
        renew_entry(&renewal, i, NULL);
    if (status == ATTN_OK)
        status = list_keep_layers(next, &catalogue->list, &error);
    if (atomic_load(stopping)) {
        list_deinit(next);
        return;
    }

    if (status == ATTN_OK && list_count_loaded(next) == 0 &&
        list_count_loaded(&catalogue->list) > 0)
        status = error_set(&error, ATTN_E_VALUE, "no model would be left");
    if (status == ATTN_OK)
        status = publish_list(catalogue, next, &error);
    if (status == ATTN_OK)
        num_failed = log_reload(next, &catalogue->list, num_doubles);
    else
        log_write(LOG_WARN, "models not reloaded, the former ones are kept",
                  LOG_TEXT("reason", error.text));
    obs_count_reload(&catalogue->generations->reloads, num_failed == 0);
    list_deinit(next);
}

/* --- one model, by request --- */

static bool refuse_load(struct wire_problem *problem, const char *name,
                        const char *reason) {
    return wire_problem_set(problem, WIRE_E_MODEL_NOT_CHANGED, "model",
                            "failed to load '%s': %s", name, reason);
}

/* Refuses a name that no entry has. A folder's own name is refused; only its layers are
 * models. */
static bool refuse_unknown(const struct model_list *list, const char *name,
                           struct wire_problem *problem) {
    size_t size = strlen(name);
    for (size_t i = 0; i < list->count; i++) {
        const struct model_entry *entry = &list->items[i];
        if (entry->is_layer && strncmp(entry->name, name, size) == 0 &&
            entry->name[size] == '.')
            return wire_problem_set(problem, WIRE_E_UNKNOWN_MODEL, "model",
                                    "'%s' is a folder; name its layers one by one, such "
                                    "as '%s'",
                                    name, entry->name);
    }
    return wire_problem_set(problem, WIRE_E_UNKNOWN_MODEL, "model",
                            "neither --model nor a file of --model-dir is called '%s'; "
                            "POST /v2/repository/index lists what is configured",
                            name);
}

/* Publishes the list with `changed` in the place of the entry of its name, or after all
 * others, and takes over its model. */
static bool publish_entry(struct catalogue *catalogue, struct model_entry *changed,
                          struct wire_problem *ret_problem) {
    const struct model_list *known = &catalogue->list;
    const struct model_entry *old = list_find(known, changed->name);
    struct model_list next = {.items = NULL};
    bool done = true;

    for (size_t i = 0; i < known->count && done; i++) {
        struct model_entry *entry = &known->items[i];
        done = list_add_copy(&next, entry == old ? changed : entry);
    }
    if (done && old == NULL)
        done = list_add_copy(&next, changed);
    done = done && publish_list(catalogue, &next, NULL) == ATTN_OK;
    list_deinit(&next);
    return done || wire_problem_set_no_memory(ret_problem);
}

bool catalogue_load(struct catalogue *catalogue, const char *name,
                    struct wire_problem *ret_problem) {
    const struct model_entry *old = list_find(&catalogue->list, name);
    struct model_list found;
    attn_error error;

    if (load_find(catalogue->config, catalogue->specs, &found, &error) != ATTN_OK)
        return refuse_load(ret_problem, name, error.text);
    struct model_entry *entry = list_find(&found, name);
    bool done = false;
    if (entry == NULL && old != NULL && list_has_lost(&found, old)) {
        refuse_load(ret_problem, name, "its folder cannot be read now; the log says why");
    } else if (entry == NULL) {
        refuse_unknown(&found, name, ret_problem);
    } else if (old != NULL && old->model != NULL && entry_is_same(old, entry)) {
        done = true;
    } else {
        load_entry(catalogue, entry, NULL);
        bool loaded = entry->is_new;
        if (!loaded)
            refuse_load(ret_problem, name, entry_reason(entry));
        done = publish_entry(catalogue, entry, ret_problem) && loaded;
    }
    list_deinit(&found);
    return done;
}

bool catalogue_unload(struct catalogue *catalogue, const char *name,
                      struct wire_problem *ret_problem) {
    const struct model_entry *old = list_find(&catalogue->list, name);
    if (old == NULL)
        return refuse_unknown(&catalogue->list, name, ret_problem);

    struct model_entry entry = *old;
    entry.model = NULL;
    entry.unloaded = true;
    error_set(&entry.error, ATTN_E_VALUE, "unloaded");
    return publish_entry(catalogue, &entry, ret_problem);
}

void catalogue_deinit(struct catalogue *catalogue) {
    list_deinit(&catalogue->list);
    load_specs_free(catalogue->specs, catalogue->config->models.count);
}
