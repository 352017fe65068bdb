/* SPDX-License-Identifier: Apache-2.0 */
/* attention_keys.h: the keys of config.json that change what attention computes. A family
 * knows those that are asked for while its layers are read, in the objects where they are
 * asked for; any other is refused, unless its value changes nothing. So no family lists
 * what it does not have. */
#pragma once

#include <attnd/status.h>
#include <jansson.h>
#include <stdint.h>

/* How each refusal of a type or of such a key ends: with what works. */
#define REFUSAL_REMEDY                                                                   \
    "; capture queries and keys, and ask POST /v1/attention/dot-product"

/* Three stacks may have two sections each, and these eight objects with such keys. */
#define ATTENTION_OBJECTS_MAX 48

/* Which keys were asked for; a zeroed struct is none. Objects are borrowed. */
struct attention_keys {
    struct {
        const json_t *object;
        uint64_t keys; /* a bit for each */
    } asked[ATTENTION_OBJECTS_MAX];
};

/* Notes that key `name` was asked for in `object`, which may be NULL, as `keys` may. */
void attention_keys_note(struct attention_keys *keys, const json_t *object,
                         const char *name);

/* Refuses a key of `section`, or of the objects of attention in it, that was not asked
 * for there and whose value changes results. `section` may be NULL; `type` is the
 * family's, whose class ignores the keys of the words `ignored`, or NULL. Errors, with
 * one line that names the key: ATTN_E_UNSUPPORTED. */
attn_status attention_keys_check(const struct attention_keys *keys, const json_t *section,
                                 const char *type, const char *ignored,
                                 attn_error *ret_error);

/* Refuses a class of `architectures` in `root` that has no such key, but computes
 * something else than `type` does. Errors: ATTN_E_UNSUPPORTED. */
attn_status attention_keys_check_class(const json_t *root, const char *type,
                                       attn_error *ret_error);
