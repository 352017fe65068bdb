/* SPDX-License-Identifier: Apache-2.0 */
/* api_keys.c: parses --api-key-file, and finds the key that a client sent. */
#include "http/net/api_keys.h"

#include "base/error.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct api_key {
    unsigned char bytes[API_KEY_MAX]; /* padded with 0, a byte that no key has */
    char name[API_KEY_NAME_MAX + 1];
};

struct api_keys {
    size_t count;
    struct api_key items[API_KEYS_MAX]; /* [count] */
};

size_t api_keys_count(const struct api_keys *keys) {
    return keys->count;
}

void api_keys_destroy(struct api_keys *keys) {
    if (keys != NULL)
        explicit_bzero(keys->items, keys->count * sizeof keys->items[0]);
    free(keys);
}

/* --- reading --- */

static bool is_visible(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (text[i] < '!' || text[i] > '~')
            return false;
    return true;
}

/* Reads one line of `size` bytes. Returns what is wrong with it, or NULL. */
static const char *parse_line(const char *line, size_t size, struct api_key *ret_key) {
    const char *colon = memchr(line, ':', size);
    if (colon == NULL)
        return "is not NAME:KEY";

    size_t name_size = (size_t)(colon - line);
    size_t key_size = size - name_size - 1;
    if (name_size == 0 || name_size > API_KEY_NAME_MAX || !is_visible(line, name_size))
        return "has a name that is not 1 to 64 visible ASCII characters";
    if (key_size < API_KEY_MIN || key_size > API_KEY_MAX ||
        !is_visible(colon + 1, key_size))
        return "has a key that is not 16 to 256 visible ASCII characters";

    *ret_key = (struct api_key){.bytes = {0}};
    memcpy(ret_key->bytes, colon + 1, key_size);
    memcpy(ret_key->name, line, name_size);
    return NULL;
}

/* Adds the key of a line. Returns what is wrong with it, or NULL. */
static const char *add_line(struct api_keys *keys, const char *line, size_t size) {
    struct api_key *key = &keys->items[keys->count];
    const char *wrong = parse_line(line, size, key);
    if (wrong != NULL)
        return wrong;

    for (size_t i = 0; i < keys->count; i++)
        if (memcmp(keys->items[i].bytes, key->bytes, sizeof key->bytes) == 0)
            return "has the key of an earlier line";
    keys->count++;
    return NULL;
}

attn_status api_keys_parse(const char *text, size_t size, struct api_keys **ret_keys,
                           attn_error *ret_error) {
    struct api_keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");

    size_t number = 0;
    const char *wrong = NULL;
    for (size_t at = 0; at < size && wrong == NULL; number++) {
        const char *line = text + at;
        const char *end = memchr(line, '\n', size - at);
        size_t length = end != NULL ? (size_t)(end - line) : size - at;
        at += length + 1;
        if (length > 0 && line[length - 1] == '\r')
            length--;
        if (length == 0 || *line == '#')
            continue;
        wrong = keys->count < API_KEYS_MAX ? add_line(keys, line, length)
                                           : "is one key too many; there may be 1000";
    }

    if (wrong == NULL && keys->count > 0) {
        *ret_keys = keys;
        return ATTN_OK;
    }
    api_keys_destroy(keys);
    if (wrong != NULL)
        return error_set(ret_error, ATTN_E_FORMAT, "line %zu %s", number, wrong);
    return error_set(ret_error, ATTN_E_FORMAT,
                     "has no key; write one NAME:KEY a line, KEY of 16 characters or "
                     "more");
}

/* --- comparing --- */

/* Returns 1 when two keys are equal, else 0, without a branch on their bytes. */
static size_t is_equal(const unsigned char *a, const unsigned char *b) {
    uint32_t difference = 0;
    for (size_t i = 0; i < API_KEY_MAX; i++)
        difference |= (uint32_t)(a[i] ^ b[i]);
    __asm__("" : "+r"(difference)); /* keeps the compiler from ending the loop early */
    return (difference - 1) >> 31;
}

bool api_keys_find(const struct api_keys *keys, const char *text, size_t size,
                   char ret_name[static API_KEY_NAME_MAX + 1]) {
    unsigned char bytes[API_KEY_MAX] = {0};
    size_t found = 0; /* index of the key + 1; 0: none */

    memcpy(bytes, text, size < sizeof bytes ? size : sizeof bytes);
    for (size_t i = 0; i < keys->count; i++)
        found |= (0 - is_equal(keys->items[i].bytes, bytes)) & (i + 1);
    if (found == 0 || size > sizeof bytes)
        return false;
    memcpy(ret_name, keys->items[found - 1].name, API_KEY_NAME_MAX + 1);
    return true;
}

bool api_keys_have_name(const struct api_keys *keys, const char *name) {
    for (size_t i = 0; i < keys->count; i++) {
        if (strcmp(keys->items[i].name, name) == 0)
            return true;
    }
    return false;
}
