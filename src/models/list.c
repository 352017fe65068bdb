/* SPDX-License-Identifier: Apache-2.0 */
/* list.c: lists of models. They are short, so names are searched for from the start. */
#include "models/list.h"

#include "base/error.h"
#include "base/log.h"
#include "weights/families/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model_entry *list_add(struct model_list *list, const char *name,
                             const char *path) {
    size_t count = list->count + 1;
    struct model_entry *items = realloc(list->items, count * sizeof *items);
    char *copy = path != NULL ? strdup(path) : NULL;
    if (items != NULL)
        list->items = items;
    if (items == NULL || (path != NULL && copy == NULL)) {
        free(copy);
        return NULL;
    }

    struct model_entry *entry = &items[list->count++];
    *entry = (struct model_entry){.path = copy};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return entry;
}

bool list_add_copy(struct model_list *list, struct model_entry *entry) {
    struct model_entry *copy = list_add(list, entry->name, entry->path);
    if (copy == NULL)
        return false;
    char *path = copy->path;
    *copy = *entry;
    copy->path = path;
    copy->folder = NULL;
    entry->is_new = false;
    return true;
}

struct model_entry *list_find(const struct model_list *list, const char *name) {
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].name, name) == 0)
            return &list->items[i];
    }
    return NULL;
}

size_t list_count_loaded(const struct model_list *list) {
    size_t count = 0;
    for (size_t i = 0; i < list->count; i++)
        count += list->items[i].model != NULL;
    return count;
}

void list_close(struct model_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        list->items[i].is_new = false;
        folder_close(list->items[i].folder);
        list->items[i].folder = NULL;
    }
}

/* Frees what the entry holds, and its model unless that was published. */
static void entry_deinit(struct model_entry *entry) {
    if (entry->is_new)
        attn_model_destroy(entry->model);
    folder_close(entry->folder);
    free(entry->path);
}

void list_deinit(struct model_list *list) {
    for (size_t i = 0; i < list->count; i++)
        entry_deinit(&list->items[i]);
    free(list->items);
    *list = (struct model_list){.items = NULL};
}

bool entry_is_same(const struct model_entry *a, const struct model_entry *b) {
    if (strcmp(a->name, b->name) != 0)
        return false;
    if (a->path == NULL || b->path == NULL)
        return a->path == b->path;
    return strcmp(a->path, b->path) == 0 && a->spec == b->spec &&
           folder_state_is_same(&a->file, &b->file);
}

const char *entry_reason(const struct model_entry *entry) {
    const char *path = entry->path != NULL ? entry->path : "";
    const char *reason = entry->error.text;
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

size_t list_drop_doubles(struct model_list *list) {
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

bool list_has_lost(const struct model_list *found, const struct model_entry *layer) {
    for (size_t i = 0; i < found->count; i++) {
        const struct model_entry *entry = &found->items[i];
        if (layer->is_layer && !entry->is_layer && entry->model == NULL &&
            entry->path != NULL && strcmp(entry->path, layer->path) == 0)
            return true;
    }
    return false;
}

attn_status list_keep_layers(struct model_list *next, const struct model_list *known,
                             attn_error *ret_error) {
    for (size_t i = 0; i < known->count; i++) {
        if (list_has_lost(next, &known->items[i]) &&
            list_find(next, known->items[i].name) == NULL &&
            !list_add_copy(next, &known->items[i]))
            return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    }
    return ATTN_OK;
}
