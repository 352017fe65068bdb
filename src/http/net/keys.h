/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h: the keys of --api-key-file, one of which a request must carry. */
#ifndef ATTND_HTTP_NET_KEYS_H
#define ATTND_HTTP_NET_KEYS_H

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

#define KEYS_NAME_MAX 64 /* bytes of a name, without its terminator */
#define KEYS_KEY_MIN  16 /* bytes of a key */
#define KEYS_KEY_MAX  256
#define KEYS_MAX      1000

/* Immutable, so any thread may read them. */
struct keys;

/* Reads `size` bytes of text: one NAME:KEY a line, both of visible ASCII, the name
 * without ':'. Blank lines are skipped, and lines that begin with '#'. A name may have
 * several keys, but no two names have one key. The caller frees *ret_keys. Errors:
 * ATTN_E_FORMAT, with one line that never shows a key, or ATTN_E_NOMEM. */
attn_status keys_parse(const char *text, size_t size, struct keys **ret_keys,
                       attn_error *ret_error);

size_t keys_count(const struct keys *keys);

/* Finds the key that is `size` bytes of text. ret_name is then its name. The time depends
 * on how many keys there are, and neither on them nor on the text. Thread-safe. */
bool keys_find(const struct keys *keys, const char *text, size_t size,
               char ret_name[static KEYS_NAME_MAX + 1]);

/* Accepts NULL. */
void keys_destroy(struct keys *keys);

#endif
