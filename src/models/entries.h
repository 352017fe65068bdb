/* SPDX-License-Identifier: Apache-2.0 */
/* entries.h: a list of the models that the options name, each with what is loaded of it.
 * One thread at a time changes a list. */
#ifndef ATTND_MODELS_ENTRIES_H
#define ATTND_MODELS_ENTRIES_H

#include "models/load.h"

/* A model that the options name. */
struct catalogue_entry {
    struct load_source source; /* `file` is the one that was loaded */
    /* NULL: not loaded. Owned by the generations, once it was published. */
    attn_model *model;
    bool is_new;   /* not published yet */
    bool unloaded; /* by a request; it stays so until one loads it */
    /* Why the file is not loaded as it is now, or "". */
    char reason[sizeof((attn_error *)0)->text];
};

struct catalogue_entries {
    struct catalogue_entry *items; /* [count], owned */
    size_t count;
};

/* Makes an entry of each source that the options name, none of them loaded. The caller
 * owns *ret_entries. A header that jansson read while memory was short may be cut, so
 * what is made of it does not count (wire/json/value.h). Errors: those of
 * load_find_sources(); ATTN_E_NOMEM. */
attn_status find_entries(const struct config *config,
                         struct catalogue_entries *ret_entries, attn_error *ret_error);

/* Checks, by their headers, that all models fit in the memory that this process may use.
 * One that cannot be loaded at all does not count, since load_model() says why. Errors,
 * with one line: ATTN_E_NOMEM. */
attn_status check_entries_fit(const struct config *config,
                              const struct catalogue_entries *entries,
                              attn_error *ret_error);

/* Frees the entries, and models that were not published. */
void deinit_entries(struct catalogue_entries *entries);

/* Returns the first entry of that name among `count`, or NULL. */
struct catalogue_entry *find_entry(struct catalogue_entry *items, size_t count,
                                   const char *name);

/* Adds an empty entry; returns NULL when memory is short. */
struct catalogue_entry *add_entry(struct catalogue_entries *entries);

size_t count_loaded(const struct catalogue_entries *entries);

/* Notes why the entry is not loaded; clients may see it. */
void set_reason(struct catalogue_entry *entry, const char *reason);

#endif
