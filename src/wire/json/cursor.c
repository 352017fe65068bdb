/* SPDX-License-Identifier: Apache-2.0 */
/* cursor.c: skips values, and reports where and what a token is. */
#include "wire/json/cursor.h"

#include "base/pace.h"
#include "wire/decimal/read.h"

#include <stdio.h>

#define BLOCK_BYTES    16
#define BLOCKS_MAX     255 /* a byte counts at most one comma of each */
#define TOKEN_SHOWN    20  /* bytes */
#define PATH_BYTES_MAX 96

typedef uint8_t block __attribute__((vector_size(BLOCK_BYTES)));

/* --- line and column --- */

static bool is_word_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           c == '-' || c == '+' || c == '.' || c == '_';
}

/* Returns the end of the token at the cursor: a number, a word or one character. */
static const char *token_end(const struct wire_cursor *cursor) {
    const char *end = cursor->at;
    while (end < cursor->end && is_word_char(*end))
        end++;
    if (end > cursor->at || end == cursor->end)
        return end;

    /* Another character, with all its bytes of UTF-8. */
    do
        end++;
    while (end < cursor->end && (*end & 0xC0) == 0x80);
    return end;
}

void wire_cursor_locate(const struct wire_cursor *cursor, struct wire_place *place) {
    if (cursor->body == NULL) /* an option of safetensors */
        return;
    place->line = 1;
    place->column = 0;
    for (const char *c = cursor->body, *end = token_end(cursor); c < end; c++) {
        if ((size_t)(c - cursor->body) % PACE_PIECE == PACE_PIECE - 1)
            pace_add(PACE_PIECE);
        if (*c == '\n') {
            place->line++;
            place->column = 0;
        } else if ((*c & 0xC0) != 0x80) { /* in characters, as jansson counts */
            place->column++;
        }
    }
}

/* Returns whether the token at the cursor is `text`. */
static bool is_literal(const struct wire_cursor *cursor, const char *text) {
    size_t length = strlen(text);
    return (size_t)(token_end(cursor) - cursor->at) == length &&
           memcmp(cursor->at, text, length) == 0;
}

/* Remedies for tokens that are not JSON, but Python's, JavaScript's or C's. */
static const struct {
    const char *words[7];
    const char *starts, *remedy;
} habits[] = {
    {{"NaN", "Infinity", "-Infinity", "nan", "inf", "-inf", "-nan"},
     "",
     "JSON has no NaN or infinity, so send a finite number, or null in bias or "
     "attn_mask"},
    {{"True", "False", "None"}, "", "JSON writes true, false and null"},
    {{NULL}, "'", "put names and strings in double quotes"},
    {{NULL}, "/#", "JSON has no comments; remove it"},
    {{NULL}, "(", "send lists of numbers, as x.tolist() makes them"},
    {{NULL}, "+-.0123456789", "JSON writes numbers as 0.5, 1, -1.0 and 1e-3"},
};

/* Returns what to do about the token at the cursor, which is not JSON. */
static const char *syntax_remedy(const struct wire_cursor *cursor) {
    const char c = wire_peek(cursor->at, cursor->end), *before = cursor->at;
    char last = '\0';

    while (before > cursor->body && strchr(" \t\r\n", before[-1]) != NULL)
        before--;
    if (before > cursor->body)
        last = before[-1];
    if ((c == ']' || c == '}') && last == ',')
        return "remove the comma before it";
    if (is_word_char(last) && is_word_char(c))
        return "put commas between numbers, as x.tolist() does";
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++) {
        for (size_t w = 0; w < 7 && habits[i].words[w] != NULL; w++) {
            if (is_literal(cursor, habits[i].words[w]))
                return habits[i].remedy;
        }
        if (c != '\0' && strchr(habits[i].starts, c) != NULL)
            return habits[i].remedy;
    }
    return "send one JSON object in UTF-8";
}

bool wire_refuse_syntax(const struct wire_cursor *cursor, const struct wire_place *place,
                        const char *what) {
    struct wire_place at = {.field = ""};
    if (place != NULL)
        at = *place;
    char path[PATH_BYTES_MAX] = "";
    wire_cursor_locate(cursor, &at);
    if (place != NULL)
        wire_place_print(path, sizeof path, place);

    const char *end = token_end(cursor);
    int shown = end - cursor->at < TOKEN_SHOWN ? (int)(end - cursor->at) : TOKEN_SHOWN;
    char token[TOKEN_SHOWN + 3] = "end of file";
    if (shown > 0)
        snprintf(token, sizeof token, "'%.*s'", shown, cursor->at);
    return wire_problem_set(cursor->problem, WIRE_E_MALFORMED_JSON, NULL,
                            "line %zu, column %zu: %s%s%s near %s; %s", at.line,
                            at.column, path, path[0] != '\0' ? ": " : "", what, token,
                            syntax_remedy(cursor));
}

/* --- types --- */

const char *wire_cursor_number_end(const struct wire_cursor *cursor) {
    const char *end = wire_number_end(cursor->at, cursor->end);
    return end != NULL && !is_word_char(wire_peek(end, cursor->end)) ? end : NULL;
}

/* Returns the type of the number at the cursor, or NULL when there is none. */
static const char *number_type(const struct wire_cursor *cursor) {
    const char *end = wire_cursor_number_end(cursor);
    if (end == NULL)
        return NULL;
    for (const char *c = cursor->at; c < end; c++) {
        if (*c == '.' || (*c | 0x20) == 'e')
            return "number";
    }
    return "integer";
}

const char *wire_cursor_type(const struct wire_cursor *cursor) {
    switch (wire_peek(cursor->at, cursor->end)) {
    case '[':
        return "array";
    case '{':
        return "object";
    case '"':
        return "string";
    case 't':
        return is_literal(cursor, "true") ? "boolean" : NULL;
    case 'f':
        return is_literal(cursor, "false") ? "boolean" : NULL;
    case 'n':
        return is_literal(cursor, "null") ? "null" : NULL;
    default:
        return number_type(cursor);
    }
}

bool wire_refuse_value_type(const struct wire_cursor *cursor, struct wire_place *place,
                            const char *expected) {
    const char *type = wire_cursor_type(cursor);
    if (type == NULL)
        return wire_refuse_syntax(cursor, place, "a value expected");
    wire_cursor_locate(cursor, place);
    return wire_refuse_type(place, expected, type, cursor->problem);
}

size_t wire_cursor_levels(struct wire_cursor *cursor) {
    size_t levels = 0;
    while (wire_cursor_next(cursor) == '[') {
        levels++;
        cursor->at++;
    }
    return levels;
}

/* --- skipping --- */

/* Returns bit 7 of each byte of the word that equals `byte`; exact. */
static uint64_t find_byte(uint64_t word, unsigned char byte) {
    const uint64_t low = WIRE_ALL_BYTES(0x7F);
    uint64_t others = word ^ WIRE_ALL_BYTES(byte);
    return ~(((others & low) + low) | others | low);
}

/* Finds brackets, braces, quotes and a few letters. All but the quotes are 0x7F when
 * or-ed with 0x26. */
static uint64_t find_special(uint64_t word) {
    return find_byte(word | WIRE_ALL_BYTES(0x26), 0x7F) | find_byte(word, '"');
}

/* Returns how many bytes find_byte() has found. */
static size_t count_found(uint64_t bits) {
    return (size_t)((bits >> 7) * WIRE_ALL_BYTES(1) >> 56);
}

/* Skips blocks without special bytes and counts their commas. */
static const char *skip_blocks(const char *at, const char *end, size_t *commas) {
    block counts = {0};
    for (int i = 0; i < BLOCKS_MAX && end - at >= BLOCK_BYTES; i++) {
        block bytes;
        memcpy(&bytes, at, sizeof bytes);
        block special = (block)((bytes | 0x26) == 0x7F) | (block)(bytes == '"');
        uint64_t any[2];
        memcpy(any, &special, sizeof any);
        if ((any[0] | any[1]) != 0)
            break;
        counts -= (block)(bytes == ','); /* true is -1 */
        at += BLOCK_BYTES;
    }
    for (int i = 0; i < BLOCK_BYTES; i++)
        *commas += counts[i];
    return at;
}

/* Returns the end of the step that begins at `at`. */
static const char *step_end(const struct wire_cursor *cursor, const char *at) {
    return cursor->end - at > (ptrdiff_t)PACE_PIECE ? at + PACE_PIECE : cursor->end;
}

/* Returns the next bracket, brace, quote, 'Y', '_', 'y' or DEL, or the end. Adds the
 * commas before it. */
static const char *skip_plain(const char *at, const char *end, size_t *commas) {
    at = skip_blocks(at, end, commas);
    while (at < end) {
        uint64_t word = wire_load_word(at, end), special = find_special(word);
        uint64_t found = find_byte(word, ',');
        if (special != 0) {
            uint64_t before = (special & -special) - 1; /* all bits below the first */
            *commas += count_found(found & before);
            return at + __builtin_ctzll(special) / 8;
        }
        *commas += count_found(found);
        at += sizeof word;
        if (end - at >= (ptrdiff_t)2 * BLOCK_BYTES)
            at = skip_blocks(at, end, commas);
    }
    return end;
}

/* Skips values from the cursor on. Counts what is skipped, and the byte before it. */
static void skip_values(struct wire_cursor *cursor, size_t *commas) {
    const char *start, *end;
    do {
        start = cursor->at;
        end = step_end(cursor, start);
        cursor->at = skip_plain(start, end, commas);
        pace_add((size_t)(cursor->at - start) + 1);
    } while (cursor->at == end && end < cursor->end);
}

/* Skips a string from its first quote on. */
static bool skip_string(struct wire_cursor *cursor) {
    const char *start, *end;
    cursor->at++;
    do {
        start = cursor->at;
        end = step_end(cursor, start);
        while (cursor->at < end && *cursor->at != '"')
            cursor->at += *cursor->at == '\\' ? 2 : 1; /* at most 1 byte past `end` */
        pace_add((size_t)(cursor->at - start));
    } while (cursor->at >= end && end < cursor->end);

    if (cursor->at < cursor->end) {
        cursor->at++;
        return true;
    }
    cursor->at = cursor->end;
    return wire_refuse_syntax(cursor, NULL, "the end of a string expected");
}

static bool refuse_depth(const struct wire_cursor *cursor) {
    struct wire_place place = {.field = ""};
    wire_cursor_locate(cursor, &place);
    wire_problem_set(cursor->problem, WIRE_E_NESTED_TOO_DEEPLY, NULL,
                     "line %zu, column %zu: lists and objects are nested more than "
                     "%d levels deep; send fewer levels",
                     place.line, place.column, WIRE_DEPTH_MAX);
    strcpy(cursor->problem->expected, "[1,32]");
    strcpy(cursor->problem->got, "33");
    _Static_assert(WIRE_DEPTH_MAX == 32, "the two lines above");
    return false;
}

/* Refuses what is not the end of the innermost list or object. */
static bool refuse_missing_end(const struct wire_cursor *cursor, bool is_list) {
    return wire_refuse_syntax(cursor, NULL, is_list ? "']' expected" : "'}' expected");
}

/* Skips a list or an object. */
static bool skip_nested(struct wire_cursor *cursor, size_t outer,
                        struct wire_span *span) {
    bool is_list[WIRE_DEPTH_MAX];
    size_t depth = outer;

    do {
        char c = wire_peek(cursor->at, cursor->end);
        switch (c) {
        case '[':
        case '{':
            if (depth >= WIRE_DEPTH_MAX)
                return refuse_depth(cursor);
            span->lists += c == '[' && depth == outer + 1;
            is_list[depth++] = c == '[';
            break;
        case ']':
        case '}':
            if (is_list[depth - 1] != (c == ']'))
                return refuse_missing_end(cursor, is_list[depth - 1]);
            depth--;
            break;
        case '"':
            if (!skip_string(cursor))
                return false;
            /* A key inside a list: the list has no end. */
            if (is_list[depth - 1] && wire_cursor_next(cursor) == ':')
                return refuse_missing_end(cursor, true);
            cursor->at--;
            break;
        case '\0':
            if (cursor->at == cursor->end)
                return refuse_missing_end(cursor, is_list[depth - 1]);
            break;
        default:
            break;
        }

        cursor->at++;
        if (depth > outer)
            skip_values(cursor, &span->commas);
    } while (depth > outer);
    return true;
}

bool wire_cursor_skip(struct wire_cursor *cursor, size_t depth,
                      struct wire_span *ret_span) {
    struct wire_span span = {.start = cursor->at};

    switch (wire_peek(cursor->at, cursor->end)) {
    case '[':
    case '{':
        if (!skip_nested(cursor, depth, &span))
            return false;
        break;
    case '"':
        if (!skip_string(cursor))
            return false;
        break;
    default:
        while (is_word_char(wire_peek(cursor->at, cursor->end)))
            cursor->at++;
        if (cursor->at == span.start)
            return wire_refuse_syntax(cursor, NULL, "a value expected");
    }

    span.end = cursor->at;
    *ret_span = span;
    return true;
}
