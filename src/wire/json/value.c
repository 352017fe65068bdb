/* SPDX-License-Identifier: Apache-2.0 */
/* value.c: parses strings with jansson, and refuses bad strings and duplicate keys. */
#include "wire/json/value.h"

#include "safetensors/parse.h"

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

/* Refuses the string at `span`, at the byte where jansson found the error. */
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
    json_t *string = NULL;

    attn_status status = parse_json(span->start, (size_t)(span->end - span->start),
                                    JSON_DECODE_ANY, &string, &error);
    if (status == ATTN_E_NOMEM)
        wire_problem_set_no_memory(cursor->problem);
    else if (status != ATTN_OK)
        refuse_string(cursor, span, &error);
    return string;
}
