/* SPDX-License-Identifier: Apache-2.0 */
/* spec.h: parses NAME=FILE[,KEY=VALUE]..., the value of --model, and the same
 * without NAME=, an operand. */
#pragma once

#include <attnd/model.h>

struct model_spec {
    char *text;       /* owned; all pointers below point into it */
    const char *name; /* NULL in an operand */
    const char *path;
    attn_model_options options;
    const char *precision; /* NULL: as --precision says */
    /* Of a folder alone: */
    const char *layers; /* "0-3,7"; NULL: all */
    const char *layer;  /* one, by its name: "decoder.3.cross"; NULL: all */
    bool pre_norm;
};

/* Parses a specification. On success the caller owns *ret_spec. Errors, with one
 * line that names the option and the key: ATTN_E_VALUE, ATTN_E_NOMEM. A path cannot
 * hold a comma, but the list of layers can. */
attn_status model_spec_parse(const char *text, struct model_spec *ret_spec,
                             attn_error *ret_error);

/* The same for FILE[,KEY=VALUE]..., an operand of attnd inspect, heads or prune. */
attn_status model_spec_parse_operand(const char *text, struct model_spec *ret_spec,
                                     attn_error *ret_error);

/* Frees the memory; a zeroed struct is fine. */
void model_spec_deinit(struct model_spec *spec);
