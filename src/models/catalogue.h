/* SPDX-License-Identifier: Apache-2.0 */
/* catalogue.h: the models that the options name, which of them are loaded, and how they
 * are replaced while attnd serves.
 *
 * One thread at a time uses a catalogue: main() until the loader has started
 * (daemon/loader.h), and the loader then. Every change makes a new list of models, which
 * is published as one generation; without memory for that, the list before it stays. */
#pragma once

#include "models/generation.h"
#include "models/load.h"
#include "sched/budget.h"
#include "sched/pool.h"

#include <stdatomic.h>

struct catalogue {
    const struct config *config;     /* borrowed */
    struct generations *generations; /* borrowed; where the list is published */
    struct sched_budget *budget;     /* borrowed; memory that is kept for requests */
    struct captures *captures;       /* borrowed; they may grow; NULL: none are kept */
    /* Borrowed; its workers compute with new models before these are published. NULL:
     * none have started. */
    struct sched_pool *pool;
    struct model_spec *specs; /* [config->models.count], owned; see load_specs() */
    struct model_list list;   /* that is published */
    bool serves;              /* catalogue_start() has published a list */
    bool is_quiet;            /* a load is not logged */
};

/* Loads all models at start, and publishes them. Logs each model, and a warning for each
 * file that is skipped and how many were, or when there is none. Errors, with one line:
 * ATTN_E_VALUE for two models with the same name, and when all of a folder were skipped
 * and no other model is left; ATTN_E_NOMEM when they do not fit in memory together; else
 * as load_find() and load_model(). */
attn_status catalogue_start(struct catalogue *catalogue, attn_error *ret_error);

/* Looks for files that were added, removed or changed, loads what is new, and publishes
 * the result. A file that cannot be loaded, or that there is not enough memory for,
 * leaves the model that it would replace, and the log says why. Does nothing more once
 * *stopping is set. */
void catalogue_reload(struct catalogue *catalogue, const atomic_bool *stopping);

/* Loads the model of this name, if it is not loaded or its file has changed. Returns
 * false with *ret_problem set, and what was loaded before still served. */
bool catalogue_load(struct catalogue *catalogue, const char *name,
                    struct wire_problem *ret_problem);

/* Unloads the model of this name, if it is loaded. Returns false with *ret_problem set,
 * and nothing changed. */
bool catalogue_unload(struct catalogue *catalogue, const char *name,
                      struct wire_problem *ret_problem);

/* Frees the list, but not models that were published. */
void catalogue_deinit(struct catalogue *catalogue);
