/* SPDX-License-Identifier: Apache-2.0 */
/* parse.c: jansson's allocator, and the calls of its parser. */
#include "safetensors/parse.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static _Thread_local bool is_parsing, allocation_failed;

/* jansson gets this memory after malloc() has failed, until the text is parsed. Its
 * lexer loses the character for which its buffer could not grow, and goes on. Such a
 * token then ends the process by an assertion, or is read past its end. So the token that
 * is being read is completed here. A longer string is safe without: jansson copies it to
 * a block of its own first, which it does not get. */
static _Thread_local union {
    char bytes[8192];
    max_align_t alignment;
} spare;
static _Thread_local size_t spare_used;

static void *take_spare(size_t size) {
    size_t rounded =
        (size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    void *memory = spare.bytes + spare_used;
    if (size > sizeof spare || rounded > sizeof spare - spare_used) {
        spare_used = sizeof spare;
        return NULL;
    }
    spare_used += rounded;
    return memory;
}

static void *noting_malloc(size_t size) {
    void *memory = allocation_failed ? NULL : malloc(size);
    if (memory != NULL || !is_parsing)
        return memory;
    allocation_failed = true;
    return take_spare(size);
}

static void noting_free(void *memory) {
    uintptr_t offset = (uintptr_t)memory - (uintptr_t)spare.bytes;
    if (offset >= sizeof spare)
        free(memory);
}

void parse_json_init(void) {
    json_set_alloc_funcs(noting_malloc, noting_free);
    json_object_seed(0); /* jansson would do so later, when threads race for it */
}

attn_status parse_json(const char *text, size_t size, size_t flags, json_t **ret_json,
                       json_error_t *ret_error) {
    is_parsing = true;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES | flags, ret_error);
    /* jansson leaves the text empty where an allocation of its own failed */
    bool is_short =
        allocation_failed ||
        (json == NULL && (ret_error->text[0] == '\0' ||
                          json_error_code(ret_error) == json_error_out_of_memory));
    if (is_short) {
        json_decref(json);
        json = NULL;
    }
    is_parsing = allocation_failed = false;
    spare_used = 0;

    if (is_short)
        return ATTN_E_NOMEM;
    if (json == NULL)
        return ATTN_E_FORMAT;
    *ret_json = json;
    return ATTN_OK;
}
