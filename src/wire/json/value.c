/* SPDX-License-Identifier: Apache-2.0 */
/* value.c: parses strings with jansson, and turns its errors into problems. */
#include "wire/json/value.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

static _Thread_local bool allocation_failed;

/* What jansson gets after malloc() has failed, until the next wire_json_watch(). Its
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
    if (memory != NULL)
        return memory;
    allocation_failed = true;
    return take_spare(size);
}

static void noting_free(void *memory) {
    uintptr_t offset = (uintptr_t)memory - (uintptr_t)spare.bytes;
    if (offset >= sizeof spare)
        free(memory);
}

void wire_json_init(void) {
    json_set_alloc_funcs(noting_malloc, noting_free);
    json_object_seed(0); /* jansson would do so later, when threads race for it */
}

bool wire_refuse_duplicate(const struct wire_cursor *cursor,
                           const struct wire_span *span) {
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_place place = {.field = ""};
    char key[sizeof cursor->problem->field];
    size_t length = (size_t)(span->end - span->start) - 2;

    if (length > sizeof key - 1)
        length = sizeof key - 1;
    memcpy(key, span->start + 1, length); /* escapes are not resolved */
    key[length] = '\0';

    there.at = span->end;
    wire_cursor_locate(&there, &place);
    return wire_problem_set(
        cursor->problem, WIRE_E_DUPLICATE_KEY, key,
        "line %zu, column %zu: '%s' appears twice in one object; remove one of them",
        place.line, place.column, key);
}

void wire_json_watch(void) {
    allocation_failed = false;
    spare_used = 0;
}

bool wire_json_ran_short(void) {
    return allocation_failed;
}

/* Refuses the string at `span` because of what jansson has found in it. */
static void refuse_string(const struct wire_cursor *cursor, const struct wire_span *span,
                          const json_error_t *error) {
    size_t size = (size_t)(span->end - span->start);
    size_t position = error->position < 0 ? 0 : (size_t)error->position;
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_place place = {.field = ""};

    there.at = there.end = span->start + (position < size ? position : size);
    wire_cursor_locate(&there, &place);
    wire_problem_set(cursor->problem, WIRE_E_MALFORMED_JSON, NULL,
                     "line %zu, column %zu: %s; send one JSON object in UTF-8",
                     place.line, place.column,
                     json_error_code(error) == json_error_null_character
                         ? "a string may not have \\u0000"
                         : error->text);
}

json_t *wire_string_load(const struct wire_cursor *cursor, const struct wire_span *span) {
    json_error_t error;

    wire_json_watch();
    json_t *string = json_loadb(span->start, (size_t)(span->end - span->start),
                                JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (allocation_failed) {
        json_decref(string);
        wire_problem_set_no_memory(cursor->problem);
        return NULL;
    }
    if (string == NULL)
        refuse_string(cursor, span, &error);
    return string;
}
