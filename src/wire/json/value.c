/* SPDX-License-Identifier: Apache-2.0 */
/* value.c: parses values with jansson, and turns its errors into problems. */
#include "wire/json/value.h"

#include <stdlib.h>

static _Thread_local bool allocation_failed;

static void *noting_malloc(size_t size) {
    void *memory = malloc(size);
    if (memory == NULL)
        allocation_failed = true;
    return memory;
}

void wire_json_init(void) {
    json_set_alloc_funcs(noting_malloc, free);
    json_object_seed(0); /* jansson would do so later, when threads race for it */
}

bool wire_refuse_duplicate(const char *body, const struct wire_span *span,
                           struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {body, span->end, span->end, ret_problem};
    struct wire_place place = {.field = ""};
    char key[sizeof ret_problem->field];
    size_t length = (size_t)(span->end - span->start) - 2;

    if (length > sizeof key - 1)
        length = sizeof key - 1;
    memcpy(key, span->start + 1, length); /* escapes are not resolved */
    key[length] = '\0';

    wire_cursor_locate(&cursor, &place);
    return wire_problem_set(
        ret_problem, WIRE_E_DUPLICATE_KEY, key,
        "line %zu, column %zu: '%s' appears twice in one object; remove one of them",
        place.line, place.column, key);
}

/* Returns the string that ends at `end`; an empty one when there is none. */
static struct wire_span string_before(const char *start, const char *end) {
    static const char empty[] = "\"\"";
    struct wire_span span = {.start = start, .end = end};
    if (end - start < 2 || end[-1] != '"')
        return (struct wire_span){.start = empty, .end = empty + 2};

    span.start = end - 2; /* backwards from the closing quote */
    while (span.start > start &&
           (*span.start != '"' || (span.start > start && span.start[-1] == '\\')))
        span.start--;
    return span;
}

/* Refuses the span because of what jansson has found in it. */
static void refuse_parse_error(const char *body, const struct wire_span *span,
                               const json_error_t *error,
                               struct wire_problem *ret_problem) {
    size_t size = (size_t)(span->end - span->start);
    size_t position = error->position < 0 ? 0 : (size_t)error->position;
    const char *at = span->start + (position < size ? position : size);
    struct wire_cursor cursor = {body, at, at, ret_problem};
    struct wire_place place = {.field = ""};
    struct wire_span key;

    wire_cursor_locate(&cursor, &place);
    switch (json_error_code(error)) {
    case json_error_duplicate_key:
        key = string_before(span->start, at);
        wire_refuse_duplicate(body, &key, ret_problem);
        break;
    case json_error_numeric_overflow:
        wire_problem_set(
            ret_problem, WIRE_E_OUT_OF_RANGE, NULL,
            "line %zu, column %zu: %s; send numbers in the range of float32, "
            "and integers over 64 bits with a decimal point or an exponent",
            place.line, place.column, error->text);
        break;
    default:
        wire_problem_set(ret_problem, WIRE_E_MALFORMED_JSON, NULL,
                         "line %zu, column %zu: %s; send one JSON object in UTF-8",
                         place.line, place.column, error->text);
        break;
    }
}

void wire_json_watch(void) {
    allocation_failed = false;
}

bool wire_json_ran_short(void) {
    return allocation_failed;
}

json_t *wire_json_load(const char *body, const struct wire_span *span,
                       struct wire_problem *ret_problem) {
    json_error_t error;

    wire_json_watch();
    json_t *root = json_loadb(span->start, (size_t)(span->end - span->start),
                              JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (allocation_failed) {
        json_decref(root);
        wire_problem_set_no_memory(ret_problem);
        return NULL;
    }
    if (root == NULL)
        refuse_parse_error(body, span, &error, ret_problem);
    return root;
}

const char *wire_json_type(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "object";
    case JSON_ARRAY:
        return "array";
    case JSON_STRING:
        return "string";
    case JSON_INTEGER:
        return "integer";
    case JSON_REAL:
        return "number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}
