/* SPDX-License-Identifier: Apache-2.0 */
/* attention_keys.h: the keys of config.json that change what attention computes. A family
 * knows those that are asked for while its layers are read; any other is refused, unless
 * its value changes nothing. So no family lists what it does not have. */
#pragma once

#include <attnd/status.h>
#include <jansson.h>
#include <stdint.h>

/* How each refusal of a type or of such a key ends: with what works. */
#define REFUSAL_REMEDY                                                                   \
    "; capture queries and keys, and ask POST /v1/attention/dot-product"

/* Which keys were asked for; a zeroed struct is none. */
struct attention_keys {
    uint64_t asked; /* a bit for each */
};

/* Notes that `key`, which may be a path of names and dots, was asked for. `keys` may be
 * NULL. */
void attention_keys_note(struct attention_keys *keys, const char *key);

/* Refuses a key of `section`, or of the objects of attention in it, that was not asked
 * for and whose value changes results. `section` may be NULL; `type` is the family's.
 * Errors, with one line that names the key: ATTN_E_UNSUPPORTED. */
attn_status attention_keys_check(const struct attention_keys *keys, const json_t *section,
                                 const char *type, attn_error *ret_error);

/* Refuses a class of `architectures` in `root` that has no such key, but computes
 * something else than `type` does. Errors: ATTN_E_UNSUPPORTED. */
attn_status attention_keys_check_class(const json_t *root, const char *type,
                                       attn_error *ret_error);
