/* SPDX-License-Identifier: Apache-2.0 */
/* load.h: finds the models that the options name, and loads each to serve with its
 * engine, which workers try before requests do. Errors are one line. */
#pragma once

#include "config/config.h"
#include "models/list.h"
#include "sched/pool.h"

/* Parses every --model, and checks that some option names a model, which needs no file.
 * The caller owns *ret_specs, one for each --model; see load_specs_free(). Errors:
 * ATTN_E_VALUE, ATTN_E_NOMEM. */
attn_status load_specs(const struct config *config, struct model_spec **ret_specs,
                       attn_error *ret_error);

/* Accepts NULL. */
void load_specs_free(struct model_spec *specs, size_t count);

/* Lists what --model, --model-dir and --demo name, in this order, with nothing loaded. It
 * opens no file but those of folders, which stay open with the entries of their layers.
 * The layers of all folders must fit in the memory that the process may use. A folder
 * that cannot be served is one entry, with the error. The second entry of a name has an
 * error, too. `specs` must outlive the list, which the caller owns on success. Errors:
 * ATTN_E_IO for a --model-dir that cannot be read; ATTN_E_VALUE, ATTN_E_NOMEM. */
attn_status load_find(const struct config *config, const struct model_spec *specs,
                      struct model_list *ret_list, attn_error *ret_error);

/* Loads the model of an entry that was found, to serve only. The caller owns it.
 * Thread-safe. Errors are as in attn_model_load(), or the one that the entry has. */
attn_status load_model(const struct config *config, const struct model_entry *entry,
                       attn_model **ret_model, attn_error *ret_error);

/* Logs which engine serves the model, and what its file may lack. */
void load_log_model(const attn_model *model);

/* Logs in what the mask of a folder may differ, if the entry is its first layer and was
 * loaded. Thread-safe. */
void load_log_note(const struct model_entry *entry);

/* Returns whether attnd starts without an entry that load_model() refused with `status`:
 * folders of unknown families in --model-dir are skipped; with --skip-bad-models, every
 * bad file in it is. A lack of memory is not the file's fault. */
bool load_may_skip(const struct config *config, const struct model_entry *entry,
                   attn_status status);

/* Checks, by their headers, that all models fit in the memory that this process may use,
 * beside --capture-memory and --max-memory.
 * One that cannot be loaded at all does not count, since load_model() says why. Errors:
 * ATTN_E_NOMEM. */
attn_status load_check_fit(const struct config *config, const struct model_list *list,
                           attn_error *ret_error);

/* Checks that the model of one entry fits in what is free, of which `kept` bytes are for
 * requests. What is served already is not free, since requests may use it still. Errors
 * are as in load_model(), and ATTN_E_NOMEM. */
attn_status load_check_free(const struct config *config, const struct model_entry *entry,
                            size_t kept, attn_error *ret_error);

/* Lets each worker compute a small request with each new model. Waits for workers that
 * are busy, and leaves out those that still are. `pool` may be NULL. */
void load_warm_up(const struct model_list *list, struct sched_pool *pool, bool at_start);
