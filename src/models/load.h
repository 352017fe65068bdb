/* SPDX-License-Identifier: Apache-2.0 */
/* load.h: finds the models that the options name, and loads each to serve with its
 * engine. */
#ifndef ATTND_CLI_LOAD_H
#define ATTND_CLI_LOAD_H

#include "config/config.h"

#include <attnd/model.h>
#include <sys/stat.h>

struct folder;

/* A model that the options name. */
struct load_source {
    char *name;       /* owned */
    char *path;       /* owned; NULL: built in */
    const char *spec; /* the value of its --model, borrowed; NULL: of another option */
    char *part;       /* owned; the layer of a folder, "decoder.3"; NULL: a file */
    struct folder *folder; /* that folder, a share of it; NULL: closed, or a file */
    size_t layer;          /* index in the folder */
    struct stat file; /* when it was found; st_ino is 0 where there was none. Of a folder,
                         see folder_find_state() */
};

struct load_sources {
    struct load_source *items; /* [count], owned */
    size_t count;
    size_t bytes; /* that all layers of folders need when they are served */
};

/* Checks what needs no file: the text of every --model, and that some option names a
 * model. Errors: ATTN_E_VALUE, ATTN_E_NOMEM. */
attn_status load_check(const struct config *config, attn_error *ret_error);

/* Finds what --model, --model-dir and --demo name, in this order, and opens no file but
 * those of folders, to list their layers. They stay open until load_source_close(). The
 * layers of all folders must fit in the memory that the process may use. A folder that
 * cannot be served is one source, and load_model() says why. A name may appear twice. On
 * success the caller owns *ret_sources. Errors, with one line: ATTN_E_IO for a
 * --model-dir that cannot be read; else as load_check(). */
attn_status load_find_sources(const struct config *config,
                              struct load_sources *ret_sources, attn_error *ret_error);

/* Loads a model to serve only, which the caller owns. Thread-safe. Errors are as in
 * attn_model_load(). */
attn_status load_model(const struct config *config, const struct load_source *source,
                       attn_model **ret_model, attn_error *ret_error);

/* Finds how many bytes load_model() would need, from the header of the file alone: sets
 * memory, which the model would hold, and bytes, which its weights are while they are
 * loaded. Both are 0 for a built-in model. Errors are as in load_model(). */
attn_status load_measure(const struct config *config, const struct load_source *source,
                         attn_model_info *ret_info, attn_error *ret_error);

/* Whether both are the same file with the same options, and it did not change. */
bool load_is_same(const struct load_source *a, const struct load_source *b);

/* Whether the source is a file of --model-dir. */
bool load_is_of_folder(const struct load_source *source);

/* Returns the part of an error about a source that clients may see, which has no more of
 * its path than the last part. It points into `reason`. */
const char *load_hide_path(const struct load_source *source, const char *reason);

/* Releases the share of its folder; nothing can be loaded from it any more. */
void load_source_close(struct load_source *source);

/* Copies a source, with texts of its own, but no folder. Returns false, with those that
 * there was memory for, when it is short. */
bool load_source_copy(const struct load_source *source, struct load_source *ret_copy);

/* Returns the engine options of a model. `precision` is the one that its own --model
 * sets, or NULL; serve_only is that of the options. */
attn_engine_options load_engine_options(const struct config *config,
                                        const char *precision, bool serve_only);

/* Free the memory; a zeroed struct is fine. */
void load_source_deinit(struct load_source *source);
void load_sources_deinit(struct load_sources *sources);

#endif
