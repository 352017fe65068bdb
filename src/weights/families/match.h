/* SPDX-License-Identifier: Apache-2.0 */
/* match.h: finds the family of a folder, and the prefixes of its tensors' names. */
#pragma once

#include "weights/families/config.h"
#include "weights/families/family.h"

#define MATCH_STACKS_MAX  3
#define MATCH_NAME_SIZE   256 /* bytes of a tensor's name, terminator included */
#define MATCH_PREFIX_SIZE 128 /* bytes of a prefix, terminator included */

/* A stack that the folder has. */
struct match_stack {
    const struct stack *stack;
    const char *part; /* how its layers' names begin */
    struct config_section section;
    char prefix[MATCH_PREFIX_SIZE]; /* of names of tensors, with its dot: "model." */
    size_t num_heads, width;
    size_t num_layers; /* all of them that attend are there, and no more */
    size_t first;      /* the first one that attends */
};

struct match {
    const struct family *family;
    const char *type; /* of the family, that the folder has; a constant */
    const struct family_text
        *text; /* NULL: the family is not the text of another model */
    struct match_stack stacks[MATCH_STACKS_MAX];
    size_t num_stacks;
    /* The mask of all layers but cross ones, whatever config.json says: "true" or
     * "false". NULL, as match_find() leaves it: as that says. */
    const char *causal;
    /* Classes of `architectures` and `auto_map`, or NULL: one whose name says that a
     * decoder is not causal, and one that does not have a name of the family's. */
    const char *bidirectional, *unknown;
};

/* Refuses a model_type that no entry of the table is for; says why, and what works.
 * `ret_error` must be empty. Errors: ATTN_E_UNSUPPORTED, ATTN_E_VALUE. */
attn_status match_check_type(const json_t *config, attn_error *ret_error);

/* Finds the family that `config`, which match_check_type() accepts, names and the tensors
 * fit. `prefix` is the one to take where several fit, or NULL. *ret_match borrows from
 * `config`, from `asked`, where the sections note keys, and from `ret_error`, which must
 * be empty: they keep their first error there. Errors, with one line that names the key
 * or tensor and the remedy: ATTN_E_VALUE, _FORMAT, _UNSUPPORTED. */
attn_status match_find(const json_t *config, const struct tensor_view *tensors,
                       const char *prefix, struct attention_keys *asked,
                       struct match *ret_match, attn_error *ret_error);

/* Returns where layer `index` of a stack is read from; all is borrowed. */
struct layer_source match_source(const struct match *match,
                                 const struct match_stack *stack, size_t index);

/* Writes the name of a tensor of layer `index`: prefix, layer, module, name and ending.
 * Returns false when it is longer than any that a table has. */
bool match_name(const struct match_stack *stack, size_t index, const char *module,
                const char *name, const char *ending, char ret_name[MATCH_NAME_SIZE]);
