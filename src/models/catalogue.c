/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue.c: compares what is loaded with what the options name now. */
#include "models/catalogue.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "captures/store.h"
#include "math/model.h"
#include "models/team.h"

#include <string.h>

/* How long each worker computes with new models: before attnd serves, and while requests
 * wait for it. */
#define WARM_UP_AT_START_NS ((int64_t)1000000000)
#define WARM_UP_NS          ((int64_t)100000000)
#define WARM_UP_WAIT_NS     ((int64_t)1000000000) /* for workers that are busy */

/* --- publishing --- */

/* Logs which engine serves the model. */
static void log_model(const attn_model *model) {
    const attn_model_info *info = attn_model_get_info(model);

    if (info->engine.difference > 0 && strcmp(info->engine.name, "openblas") == 0)
        log_write(LOG_WARN, "engines disagree, using openblas",
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
}

/* What each worker computes with for the first time. */
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

/* Lets each worker compute a small request with each new model. Waits for workers that
 * are busy, and leaves out those that still are. */
static void warm_up_workers(const struct catalogue *catalogue,
                            const struct model_list *next) {
    struct warm_up warm_up = {.list = next, .longest_ns = WARM_UP_NS};

    if (catalogue->list.count == 0)
        warm_up.longest_ns = WARM_UP_AT_START_NS;
    for (size_t i = 0; i < next->count; i++)
        warm_up.num_new += next->items[i].is_new;
    if (warm_up.num_new > 0 && catalogue->pool != NULL)
        sched_call_on_each(catalogue->pool, warm_up_worker, &warm_up, WARM_UP_WAIT_NS);
}

/* Publishes `next`, and swaps it with the list of the catalogue. Returns ATTN_E_NOMEM,
 * with nothing changed, when memory is short. The caller drops `next` in both cases. */
static attn_status publish_list(struct catalogue *catalogue, struct model_list *next,
                                attn_error *ret_error) {
    const struct model_list before = catalogue->list;

    warm_up_workers(catalogue, next);
    if (generation_publish(catalogue->generations, next) != ATTN_OK)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    list_close(next);
    catalogue->list = *next;
    *next = before;
    return ATTN_OK;
}

/* --- at start --- */

/* What the threads that load at start share. */
struct start {
    const struct config *config;
    struct model_list list;
};

/* team_work.run: loads an entry, or leaves it out. */
static attn_status load_or_skip(void *context, size_t index, attn_error *ret_error) {
    struct start *start = context;
    struct model_entry *entry = &start->list.items[index];
    attn_error error;
    attn_status status = load_model(start->config, entry, &entry->model, &error);

    entry->is_new = status == ATTN_OK;
    load_log_note(entry);
    if (status == ATTN_OK)
        return ATTN_OK;
    if (!load_may_skip(start->config, entry, status))
        return error_set(ret_error, status, "%s", error.text);
    log_write(LOG_WARN, "model skipped", LOG_TEXT("file", strrchr(entry->path, '/') + 1),
              LOG_TEXT("reason", error.text));
    entry->error = error;
    return ATTN_OK;
}

/* Warns of a folder without a model, where no other option gives one either: it may get
 * some later. Refuses one whose models are all bad. Where no option names a model, only
 * requests without one are served. */
static attn_status check_any_model(const struct start *start, attn_error *ret_error) {
    const char *folder = start->config->model_dir;
    size_t num_loaded = list_count_loaded(&start->list);
    size_t num_skipped = start->list.count - num_loaded;

    if (num_loaded == 0 && num_skipped > 0)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model-dir: all %zu models in %s were skipped; "
                         "correct one of them, the log says how",
                         num_skipped, folder);
    if (!config_names_models(start->config))
        log_write(LOG_INFO, "no model",
                  LOG_TEXT("serves", "POST /v1/attention/dot-product"),
                  LOG_TEXT("remedy", "for models, give --model NAME=FILE, --model-dir "
                                     "DIR or --demo"));
    else if (num_loaded == 0)
        log_write(LOG_WARN, "no model yet", LOG_TEXT("model_dir", folder),
                  LOG_TEXT("remedy", "put *.safetensors files, or folders with a "
                                     "config.json, there, and send SIGHUP"));
    if (num_skipped > 0)
        log_write(LOG_WARN, "models skipped", LOG_NUMBER("skipped", num_skipped),
                  LOG_NUMBER("loaded", num_loaded));
    return ATTN_OK;
}

/* team_work.report */
static void log_progress(void *context, size_t done, size_t count) {
    (void)context;
    log_write(LOG_INFO, "loading", LOG_NUMBER("loaded", done),
              LOG_NUMBER("models", count));
}

/* Loads all models of the list, which was found, on all CPUs. */
static attn_status load_list(struct start *start, attn_error *ret_error) {
    attn_status status = load_check_fit(start->config, &start->list, ret_error);
    if (status == ATTN_OK)
        status = team_run(&(struct team_work){.count = start->list.count,
                                              .run = load_or_skip,
                                              .report = log_progress,
                                              .context = start},
                          ret_error);
    if (status == ATTN_OK)
        status = check_any_model(start, ret_error);
    for (size_t i = 0; i < start->list.count && status == ATTN_OK; i++) {
        if (start->list.items[i].model != NULL)
            log_model(start->list.items[i].model);
    }
    return status;
}

attn_status catalogue_start(struct catalogue *catalogue, attn_error *ret_error) {
    struct start start = {.config = catalogue->config};

    attn_status status =
        load_find(catalogue->config, catalogue->specs, &start.list, ret_error);
    if (status == ATTN_OK)
        status = load_list(&start, ret_error);
    if (status == ATTN_OK)
        status = publish_list(catalogue, &start.list, ret_error);
    list_deinit(&start.list);
    return status;
}

/* --- while attnd serves --- */

/* Frees what is no longer held, and checks that the model fits in what is free. What
 * --max-memory lets requests take is not free, nor is what --capture-memory lets
 * captures, and what is served already is not, since requests may use it still. */
static attn_status check_free_memory(const struct catalogue *catalogue,
                                     const struct model_entry *entry,
                                     attn_error *ret_error) {
    attn_model_info info;
    attn_status status = load_measure(catalogue->config, entry, &info, ret_error);
    if (status != ATTN_OK)
        return status;

    generations_free_unused(catalogue->generations);
    size_t bytes = info.footprint.bytes > info.footprint.memory
                       ? info.footprint.bytes
                       : info.footprint.memory; /* to load it */
    size_t machine = machine_free_memory("");
    size_t kept =
        sched_budget_left(catalogue->budget) + captures_bytes_left(catalogue->captures);
    size_t left = machine > kept ? machine - kept : 0;
    if (bytes <= left)
        return ATTN_OK;
    return error_set(
        ret_error, ATTN_E_NOMEM,
        "it needs %zu bytes, and of the %zu that are free, --max-memory and "
        "--capture-memory keep %zu for requests; free memory, or lower --max-memory",
        bytes, machine, kept);
}

/* Loads an entry while others are served; logs the model, or why there is none. */
static bool load_entry(const struct catalogue *catalogue, struct model_entry *entry) {
    attn_error error;
    attn_status status = check_free_memory(catalogue, entry, &error);
    if (status == ATTN_OK)
        status = load_model(catalogue->config, entry, &entry->model, &error);

    entry->is_new = status == ATTN_OK;
    if (!entry->is_new)
        entry->error = error;
    if (catalogue->is_quiet)
        return entry->is_new;
    load_log_note(entry);
    if (entry->is_new)
        log_model(entry->model);
    else
        log_write(LOG_WARN, "model not loaded", LOG_TEXT("name", entry->name),
                  LOG_TEXT("reason", error.text));
    return entry->is_new;
}

/* Lets an entry that could not be loaded keep what is served of its name. */
static void keep_model(struct model_entry *entry, const struct model_entry *old) {
    entry->model = old->model;
    entry->file = old->file;
    entry->unloaded = old->unloaded;
}

/* Gives an entry what is served of its name if it is unchanged; otherwise loads it. */
static void renew_entry(const struct catalogue *catalogue, struct model_entry *entry) {
    const struct model_entry *old = list_find(&catalogue->list, entry->name);

    if (old != NULL && old->unloaded) {
        entry->unloaded = true;
        entry->error = old->error;
    } else if (old != NULL && old->model != NULL && entry_is_same(old, entry)) {
        entry->model = old->model;
    } else if (!load_entry(catalogue, entry) && old != NULL) {
        keep_model(entry, old);
    }
}

/* Returns whether the folder of a served layer could not be listed: `found` then has one
 * entry for its path, without a model, in place of the layers. */
static bool folder_is_lost(const struct model_list *found,
                           const struct model_entry *layer) {
    for (size_t i = 0; i < found->count; i++) {
        const struct model_entry *entry = &found->items[i];
        if (layer->is_layer && !entry->is_layer && entry->model == NULL &&
            entry->path != NULL && strcmp(entry->path, layer->path) == 0)
            return true;
    }
    return false;
}

/* Keeps the served layers of every folder that could not be listed. */
static attn_status keep_layers(const struct model_list *known, struct model_list *next) {
    for (size_t i = 0; i < known->count; i++) {
        if (folder_is_lost(next, &known->items[i]) &&
            list_find(next, known->items[i].name) == NULL &&
            !list_add_copy(next, &known->items[i]))
            return ATTN_E_NOMEM;
    }
    return ATTN_OK;
}

/* Removes entries whose name one before them has; returns how many. */
static size_t drop_doubles(struct model_list *list) {
    struct model_list kept = {list->items, 0};
    size_t found = list->count;

    for (size_t i = 0; i < found; i++) {
        struct model_entry *entry = &list->items[i];
        if (list_find(&kept, entry->name) == NULL) {
            kept.items[kept.count++] = *entry;
            continue;
        }
        log_write(LOG_WARN, "model not loaded", LOG_TEXT("name", entry->name),
                  LOG_TEXT("reason", "another model has this name; rename one"));
        entry_deinit(entry);
    }
    *list = kept;
    return found - kept.count;
}

/* What a reload does with the models that are configured. */
struct reload_counts {
    size_t kept, added, replaced, removed;
    size_t failed;   /* not loaded as their files are now, whatever is served instead */
    size_t unloaded; /* by a request, and left so */
};

/* Counts what changes from a list to the next one, which is not published yet. */
static struct reload_counts count_changes(const struct model_list *before,
                                          const struct model_list *next) {
    struct reload_counts counts = {.failed = 0};

    for (size_t i = 0; i < next->count; i++) {
        const struct model_entry *entry = &next->items[i];
        const struct model_entry *old = list_find(before, entry->name);
        if (entry->unloaded)
            counts.unloaded++;
        else if (entry->error.status != ATTN_OK)
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

/* Logs what has changed from a list to the present one. */
static void log_reload(const struct model_list *before, const struct model_list *list,
                       struct reload_counts counts) {
    for (size_t i = 0; i < before->count; i++) {
        const char *name = before->items[i].name;
        if (before->items[i].model == NULL || list_find(list, name) != NULL)
            continue;
        counts.removed++;
        log_write(LOG_INFO, "model removed", LOG_TEXT("name", name));
    }
    log_write(LOG_INFO, "models reloaded", LOG_NUMBER("kept", counts.kept),
              LOG_NUMBER("added", counts.added), LOG_NUMBER("replaced", counts.replaced),
              LOG_NUMBER("removed", counts.removed), LOG_NUMBER("failed", counts.failed),
              LOG_NUMBER("unloaded", counts.unloaded));
}

/* Renews all entries of `next`, which were found, until *stopping is set. */
static attn_status renew_list(const struct catalogue *catalogue,
                              const atomic_bool *stopping, struct model_list *next,
                              attn_error *ret_error) {
    for (size_t i = 0; i < next->count && !atomic_load(stopping); i++)
        renew_entry(catalogue, &next->items[i]);
    if (keep_layers(&catalogue->list, next) != ATTN_OK)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    if (list_count_loaded(next) == 0 && list_count_loaded(&catalogue->list) > 0)
        return error_set(ret_error, ATTN_E_VALUE, "no model would be left");
    return ATTN_OK;
}

void catalogue_reload(struct catalogue *catalogue, const atomic_bool *stopping) {
    struct model_list next = {.items = NULL};
    attn_error error;

    attn_status status = load_find(catalogue->config, catalogue->specs, &next, &error);
    size_t num_doubles = drop_doubles(&next);
    if (status == ATTN_OK)
        status = renew_list(catalogue, stopping, &next, &error);
    if (atomic_load(stopping)) {
        list_deinit(&next);
        return;
    }

    struct reload_counts counts = count_changes(&catalogue->list, &next);
    counts.failed += num_doubles;
    if (status == ATTN_OK)
        status = publish_list(catalogue, &next, &error);
    if (status == ATTN_OK)
        log_reload(&next, &catalogue->list, counts);
    else
        log_write(LOG_WARN, "models not reloaded, the former ones are kept",
                  LOG_TEXT("reason", error.text));
    if (status != ATTN_OK || counts.failed > 0)
        generations_count_failed_reload(catalogue->generations);
    list_deinit(&next);
}

/* --- one model, by request --- */

static bool refuse_change(struct wire_problem *problem, const char *verb,
                          const char *name, const char *reason) {
    return wire_problem_set(problem, WIRE_E_MODEL_NOT_CHANGED, "model",
                            "failed to %s '%s': %s", verb, name, reason);
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

/* Loads an entry that was found, and publishes it: with the reason, and with what is
 * served of its name, when it cannot be loaded. */
static bool load_found(struct catalogue *catalogue, struct model_entry *entry,
                       struct wire_problem *ret_problem) {
    const struct model_entry *old = list_find(&catalogue->list, entry->name);
    if (old != NULL && old->model != NULL && entry_is_same(old, entry))
        return true;

    bool loaded = load_entry(catalogue, entry);
    if (!loaded)
        refuse_change(ret_problem, "load", entry->name, entry_reason(entry));
    if (!loaded && old != NULL)
        keep_model(entry, old);
    return publish_entry(catalogue, entry, ret_problem) && loaded;
}

bool catalogue_load(struct catalogue *catalogue, const char *name,
                    struct wire_problem *ret_problem) {
    const struct model_entry *known = list_find(&catalogue->list, name);
    struct model_list found;
    attn_error error;

    if (load_find(catalogue->config, catalogue->specs, &found, &error) != ATTN_OK)
        return refuse_change(ret_problem, "load", name, error.text);
    struct model_entry *entry = list_find(&found, name);
    bool done;
    if (entry != NULL)
        done = load_found(catalogue, entry, ret_problem);
    else if (known != NULL && folder_is_lost(&found, known))
        done = refuse_change(ret_problem, "load", name,
                             "its folder cannot be read now; the log says why");
    else
        done = refuse_unknown(&found, name, ret_problem);
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
    if (!publish_entry(catalogue, &entry, ret_problem))
        return false;
    if (!catalogue->is_quiet)
        log_write(LOG_INFO, "model unloaded", LOG_TEXT("name", name));
    return true;
}

void catalogue_deinit(struct catalogue *catalogue) {
    list_deinit(&catalogue->list);
    load_specs_free(catalogue->specs, catalogue->config->models.count);
}
