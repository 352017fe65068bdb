/* SPDX-License-Identifier: Apache-2.0 */
/* api_keys.h: the keys of --api-key-file, one of which a request must carry. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

#define API_KEY_NAME_MAX 64 /* bytes of a name, without its terminator */
#define API_KEY_MIN      16 /* bytes of a key */
#define API_KEY_MAX      256
#define API_KEYS_MAX     1000

/* Immutable, so any thread may read them. */
struct api_keys;

/* Reads `size` bytes of text: one NAME:KEY a line, both of visible ASCII, the name
 * without ':'. Blank lines are skipped, and lines that begin with '#'. A name may have
 * several keys, but no key may occur twice. The caller frees *ret_keys. Errors:
 * ATTN_E_FORMAT, with one line that never shows a key, or ATTN_E_NOMEM. */
attn_status api_keys_parse(const char *text, size_t size, struct api_keys **ret_keys,
                           attn_error *ret_error);

size_t api_keys_count(const struct api_keys *keys);

/* Returns whether `text` is a key, and sets ret_name to its name. The time depends on the
 * number of keys only, so a client cannot guess a key from it. Thread-safe. */
bool api_keys_find(const struct api_keys *keys, const char *text, size_t size,
                   char ret_name[static API_KEY_NAME_MAX + 1]);

/* Returns whether any key has that name. Thread-safe. */
bool api_keys_have_name(const struct api_keys *keys, const char *name);

/* Accepts NULL. */
void api_keys_destroy(struct api_keys *keys);
