/* SPDX-License-Identifier: Apache-2.0 */
/* config.h: config.json and the index of a checkpoint's folder, neither of which is
 * trusted.
 *
 * A key that is absent means the default of the family's class. A key that is null means
 * "not set", which is often something else: no window, or as many key heads as query
 * heads. */
#pragma once

#include "weights/families/attention_keys.h"

#include <attnd/status.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define CONFIG_SIZE_MAX  ((size_t)32 << 20) /* bytes of a JSON file */
#define CONFIG_COUNT_MAX ((size_t)1 << 24)  /* of heads, layers and other things */

/* The object that keys are looked up in. */
struct config_section {
    const json_t *override; /* beats `object` where it has the key; NULL: nothing does */
    const json_t *object;   /* NULL: every key is absent */
    attn_error *error;      /* the first error of all that was read */
    struct attention_keys *asked; /* notes what is looked up; NULL: nothing does */
};

/* Parses the file `name` of the folder at `path`: JSON whose root is an object. The
 * caller releases *ret_json by json_decref(); where the file does not exist, it is NULL.
 * Errors, with one line that names the file: ATTN_E_FORMAT, ATTN_E_IO, ATTN_E_NOMEM. */
attn_status config_read_file(const char *path, const char *name, json_t **ret_json,
                             attn_error *ret_error);

/* Returns whether the folder at `path` has a file of that name. */
bool config_has_file(const char *path, const char *name);

/* In all functions below `keys` are alternative spellings of one key, separated by
 * spaces, which must agree where several are present. After a comma follow keys that are
 * asked when those before are absent or null. A dot leads into an object. A '=' ends
 * them, and begins what an absent key means: "=12" or "=true". NULL is a key that is
 * absent.
 *
 * A value that is not as it must be leaves one line in section->error, with ATTN_E_VALUE,
 * unless that has an error already; the caller looks there at the end. What is returned
 * then is the value of an absent key. */

/* Returns a value, borrowed; NULL where all keys are absent. ret_key, which may be NULL,
 * becomes the key that was found, or else the first one. */
const json_t *config_find(const struct config_section *section, const char *keys,
                          char ret_key[64]);

/* Returns whether the value is null. */
bool config_is_null(const struct config_section *section, const char *keys);

/* Returns the number after the '=', or else `otherwise`. */
size_t config_default(const char *keys, size_t otherwise);

/* Returns a whole number from 1 to CONFIG_COUNT_MAX; `otherwise` when it is null, or
 * absent without a '='. */
size_t config_get_count(const struct config_section *section, const char *keys,
                        size_t otherwise);

/* Returns a whole number from 0 to CONFIG_COUNT_MAX; when it is absent or null, the
 * number after the '=', or else 0. */
size_t config_get_index(const struct config_section *section, const char *keys);

/* Returns a number that is finite and larger than 0; `otherwise` when it is absent or
 * null. */
double config_get_number(const struct config_section *section, const char *keys,
                         double otherwise);

/* Returns true or false; false when it is absent without a '='. A null is false, as in
 * Python. */
bool config_get_bool(const struct config_section *section, const char *keys);

/* Returns a string, which is borrowed; `otherwise` when it is absent or null. */
const char *config_get_text(const struct config_section *section, const char *keys,
                            const char *otherwise);

/* Checks demands KEY=VALUE or KEY=VALUE|VALUE, separated by spaces, or NULL: a key that
 * is present and not null must have such a value. The error ends with `remedy`. */
void config_check_demands(const struct config_section *section, const char *demands,
                          const char *remedy);
