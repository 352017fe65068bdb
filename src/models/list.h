/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: the models that the options name, each with what is loaded of it. One thread at
 * a time uses a list. */
#pragma once

#include "models/spec.h"

#include <limits.h>
#include <sys/stat.h>

/* A model that the options name. */
struct model_entry {
    char name[NAME_MAX + 1];
    char *path;                    /* owned; NULL: built in */
    const struct model_spec *spec; /* its --model, borrowed; NULL: of another option */
    bool is_layer;                 /* of the folder at `path`; else that is a file */
    size_t layer;                  /* index in the folder */
    struct folder *folder; /* a share of that folder; NULL once the list is published */
    /* The file that was loaded, or else found; st_ino is 0 where there was none. Of a
     * folder, see folder_find_state(). */
    struct stat file;
    attn_model *model; /* NULL: not loaded. The generations own it once it is published */
    bool is_new;       /* `model` is not published yet */
    bool unloaded;     /* by a request; it stays so until one loads it */
    attn_error error;  /* why the file is not loaded as it is now; ATTN_OK: it is */
};

struct model_list {
    struct model_entry *items; /* [count], owned */
    size_t count;
};

/* Adds an entry whose path, which may be NULL, is copied. Returns NULL when memory is
 * short. */
struct model_entry *list_add(struct model_list *list, const char *name, const char *path);

/* Adds a copy of an entry, without its folder. A model that is not published is the
 * copy's from now on. Returns false when memory is short. */
bool list_add_copy(struct model_list *list, struct model_entry *entry);

/* Returns the first entry of that name, or NULL. */
struct model_entry *list_find(const struct model_list *list, const char *name);

size_t list_count_loaded(const struct model_list *list);

/* Notes that the models are published, and closes the folders. */
void list_close(struct model_list *list);

/* Frees all entries. A zeroed list is fine. */
void list_deinit(struct model_list *list);

/* Whether both are the same file with the same options, and it did not change. */
bool entry_is_same(const struct model_entry *a, const struct model_entry *b);

/* Returns the part of entry->error that clients may see, which has no more of the path
 * than the last part; "" where there is no error. */
const char *entry_reason(const struct model_entry *entry);

/* Removes entries whose name one before them has, and logs each; returns how many. */
size_t list_drop_doubles(struct model_list *list);

/* Returns whether the folder of a served layer could not be listed: `found` then has one
 * entry for its path, without a model, in place of the layers. */
bool list_has_lost(const struct model_list *found, const struct model_entry *layer);

/* Adds to `next` the known layers of every folder that could not be listed. Returns
 * ATTN_E_NOMEM when memory is short. */
attn_status list_keep_layers(struct model_list *next, const struct model_list *known,
                             attn_error *ret_error);
