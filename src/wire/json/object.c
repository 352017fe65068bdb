/* SPDX-License-Identifier: Apache-2.0 */
/* object.c: finds members, refuses unknown and duplicate keys, and reads words, booleans
 * and, with jansson, strings. */
#include "wire/json/object.h"

#include "safetensors/parse.h"
#include "wire/names.h"

#include <assert.h>
#include <stdio.h>

#define KNOWN_BYTES_MAX 384 /* of all keys of an object, with commas between them */

/* Refuses a body that is not an object. */
static bool refuse_body_type(const struct wire_cursor *cursor, const char *key) {
    const char *type = wire_cursor_type(cursor);
    if (type == NULL)
        return wire_refuse_syntax(cursor, NULL, "an object expected");

    wire_problem_set(cursor->problem, WIRE_E_WRONG_TYPE, NULL,
                     "the body is of type %s, not a JSON object; "
                     "send an object with the key %s",
                     type, key);
    strcpy(cursor->problem->expected, "\"object\"");
    snprintf(cursor->problem->got, sizeof cursor->problem->got, "\"%s\"", type);
    return false;
}

bool wire_body_open(struct wire_cursor *cursor, const char *key) {
    size_t size = (size_t)(cursor->end - cursor->at);

    if (size == 0)
        return wire_problem_set(
            cursor->problem, WIRE_E_MALFORMED_JSON, NULL,
            "line 1, column 1: the body is empty; send one JSON object");
    if (size >= 3 && memcmp(cursor->at, "\xEF\xBB\xBF", 3) == 0)
        return wire_problem_set(
            cursor->problem, WIRE_E_MALFORMED_JSON, NULL,
            "line 1, column 1: the body begins with a byte order mark; "
            "send UTF-8 without one");
    return wire_cursor_next(cursor) == '{' || refuse_body_type(cursor, key);
}

bool wire_body_close(struct wire_cursor *cursor) {
    wire_cursor_next(cursor);
    return cursor->at == cursor->end ||
           wire_refuse_syntax(cursor, NULL, "end of file expected");
}

/* Returns the index of the key of that name, or keys->count. */
static size_t find_key(const struct wire_keys *keys, const char *name, size_t length) {
    size_t i = 0;
    while (i < keys->count &&
           (keys->names[i] == NULL || strlen(keys->names[i]) != length ||
            memcmp(keys->names[i], name, length) != 0))
        i++;
    return i;
}

static bool refuse_unknown_key(const struct wire_keys *keys, const char *key,
                               struct wire_problem *ret_problem) {
    char known[KNOWN_BYTES_MAX];
    size_t used = 0;
    const char *remedy = keys->where != NULL ? wire_name_remedy(key, keys->given) : NULL;
    if (remedy != NULL)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, key,
                                "'%.64s' is not a key of %s; %s%s", key, keys->owner,
                                remedy, keys->where);
    for (size_t i = 0; i < keys->count && used < sizeof known; i++) {
        if (keys->names[i] != NULL)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s",
                                     used > 0 ? ", " : "", keys->names[i]);
    }

    return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, key,
                            "'%.64s' is not a key of %s; remove it, or use %s%s", key,
                            keys->owner, keys->count > 1 ? "one of " : "", known);
}

/* Copies the string at `span`, quotes included there, cut to WIRE_WORD_MAX bytes. */
static bool copy_word(const struct wire_cursor *cursor, const struct wire_span *span,
                      char ret_word[WIRE_WORD_MAX + 1]) {
    const char *text = span->start + 1;
    size_t length = (size_t)(span->end - span->start) - 2;
    if (length > WIRE_WORD_MAX) {
        memcpy(ret_word, text, WIRE_WORD_MAX);
        ret_word[WIRE_WORD_MAX] = '\0';
        return true;
    }

    /* The string may have escapes, or may not be UTF-8. */
    json_t *word = wire_string_load(cursor, span);
    if (word == NULL)
        return false;
    memcpy(ret_word, json_string_value(word), json_string_length(word) + 1);
    json_decref(word);
    return true;
}

bool wire_word_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    const char *field, char ret_word[WIRE_WORD_MAX + 1]) {
    const struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_place place = {.field = field};
    if (*span->start != '"')
        return wire_refuse_value_type(&there, &place, "string");
    return copy_word(cursor, span, ret_word);
}

bool wire_bool_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    const char *field, bool *ret_bool) {
    struct wire_place place = {.field = field};
    if (span->start == NULL)
        return true;

    const struct wire_cursor there = wire_cursor_at(cursor, span);
    const char *type = wire_cursor_type(&there);
    if (type == NULL || strcmp(type, "boolean") != 0)
        return wire_refuse_value_type(&there, &place, "boolean");
    *ret_bool = *span->start == 't';
    return true;
}

/* Finds which key the string at `span`, quotes included, is. */
static bool read_key(const struct wire_cursor *cursor, const struct wire_keys *keys,
                     const struct wire_span *span, size_t *ret_key) {
    char word[WIRE_WORD_MAX + 1];

    *ret_key = find_key(keys, span->start + 1, (size_t)(span->end - span->start) - 2);
    if (*ret_key < keys->count)
        return true;
    if (!copy_word(cursor, span, word))
        return false;
    *ret_key = find_key(keys, word, strlen(word));
    return *ret_key < keys->count || refuse_unknown_key(keys, word, cursor->problem);
}

/* Refuses the key at `span`, quotes included, because its object already has it. */
static bool refuse_duplicate(const struct wire_cursor *cursor,
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

/* Finds one member, whose key is next. */
static bool scan_member(struct wire_cursor *cursor, size_t depth,
                        const struct wire_keys *keys, bool seen[WIRE_KEYS_MAX],
                        struct wire_span *members) {
    struct wire_span key_text, value;
    size_t key;

    if (wire_cursor_next(cursor) != '"')
        return wire_refuse_syntax(cursor, NULL, "a key expected");
    if (!wire_cursor_skip(cursor, depth, &key_text) ||
        !read_key(cursor, keys, &key_text, &key))
        return false;
    if (seen[key])
        return refuse_duplicate(cursor, &key_text);
    seen[key] = true;

    if (wire_cursor_next(cursor) != ':')
        return wire_refuse_syntax(cursor, NULL, "':' expected");
    cursor->at++;
    wire_cursor_next(cursor);
    if (!wire_cursor_skip(cursor, depth, &value))
        return false;
    /* null has the same meaning as leaving it out. */
    if (value.end - value.start != 4 || memcmp(value.start, "null", 4) != 0)
        members[key] = value;
    return true;
}

bool wire_object_scan(struct wire_cursor *cursor, struct wire_place *place, size_t depth,
                      const struct wire_keys *keys, struct wire_span *ret_members) {
    bool seen[WIRE_KEYS_MAX] = {false};

    assert(keys->count <= WIRE_KEYS_MAX);
    memset(ret_members, 0, keys->count * sizeof *ret_members);
    if (wire_cursor_next(cursor) != '{')
        return wire_refuse_value_type(cursor, place, "object");
    cursor->at++;

    char c = wire_cursor_next(cursor);
    while (c != '}') {
        if (!scan_member(cursor, depth, keys, seen, ret_members))
            return false;
        c = wire_cursor_next(cursor);
        if (c != ',' && c != '}')
            return wire_refuse_syntax(cursor, NULL, "',' or '}' expected");
        cursor->at += c == ',';
    }
    cursor->at++;
    return true;
}

/* --- strings --- */

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
