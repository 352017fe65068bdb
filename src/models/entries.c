/* SPDX-License-Identifier: Apache-2.0 */
/* entries.c: lists of the models that the options name. */
#include "models/entries.h"

#include "base/error.h"
#include "base/machine.h"
#include "base/size.h"
#include "wire/json/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void deinit_entries(struct catalogue_entries *entries) {
    for (size_t i = 0; i < entries->count; i++) {
        if (entries->items[i].is_new)
            attn_model_destroy(entries->items[i].model);
        load_source_deinit(&entries->items[i].source);
    }
    free(entries->items);
    *entries = (struct catalogue_entries){NULL, 0};
}

attn_status find_entries(const struct config *config,
                         struct catalogue_entries *ret_entries, attn_error *ret_error) {
    struct load_sources sources;

    wire_json_watch();
    attn_status status = load_find_sources(config, &sources, ret_error);
    if (status != ATTN_OK)
        return status;
    if (wire_json_ran_short()) {
        load_sources_deinit(&sources);
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    }

    struct catalogue_entry *items = calloc(sources.count + 1, sizeof *items);
    if (items == NULL) {
        load_sources_deinit(&sources);
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < sources.count; i++)
        items[i].source = sources.items[i];
    *ret_entries = (struct catalogue_entries){items, sources.count};
    free(sources.items); /* their texts are the entries' now */
    return ATTN_OK;
}

attn_status check_entries_fit(const struct config *config,
                              const struct catalogue_entries *entries,
                              attn_error *ret_error) {
    size_t memory = machine_memory(""), sum = 0;

    for (size_t i = 0; i < entries->count; i++) {
        attn_model_info info;
        if (load_measure(config, &entries->items[i].source, &info, ret_error) ==
                ATTN_OK &&
            info.bytes <= memory)
            size_add_saturating(&sum, info.memory);
    }
    if (sum <= memory)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_NOMEM,
                     "the models need %zu bytes together, but this process may use %zu; "
                     "name fewer of them, or use --precision bf16",
                     sum, memory);
}

struct catalogue_entry *find_entry(struct catalogue_entry *items, size_t count,
                                   const char *name) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(items[i].source.name, name) == 0)
            return &items[i];
    }
    return NULL;
}

size_t count_loaded(const struct catalogue_entries *entries) {
    size_t count = 0;
    for (size_t i = 0; i < entries->count; i++)
        count += entries->items[i].model != NULL;
    return count;
}

void set_reason(struct catalogue_entry *entry, const char *reason) {
    snprintf(entry->reason, sizeof entry->reason, "%s",
             load_hide_path(&entry->source, reason));
}

struct catalogue_entry *add_entry(struct catalogue_entries *entries) {
    size_t count = entries->count + 1;
    struct catalogue_entry *items = realloc(entries->items, count * sizeof *items);
    if (items == NULL)
        return NULL;
    entries->items = items;
    entries->count = count;
    items[count - 1] = (struct catalogue_entry){.model = NULL};
    return &items[count - 1];
}
