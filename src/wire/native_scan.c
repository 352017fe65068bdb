/* SPDX-License-Identifier: Apache-2.0 */
/* native_scan.c: finds the members of a request, and what decoding them will take. */
#include "base/size.h"
#include "wire/json_cost.h"
#include "wire/json_value.h"
#include "wire/native.h"
#include "wire/tensor_text.h"

#include <stdio.h>

#define KEY_DECODED 128 /* bytes; a longer key is none of ours, whatever it spells */

static const char *const names[WIRE_NUM_MEMBERS] = {
    [WIRE_MODEL] = "model",
    [WIRE_QUERIES] = "queries",
    [WIRE_KEYS] = "keys",
    [WIRE_VALUES] = "values",
    [WIRE_VALID_LENS] = "valid_lens",
    [WIRE_CAUSAL] = "causal",
    [WIRE_NEED_WEIGHTS] = "need_weights",
    [WIRE_HEAD_MASK] = "head_mask",
    [WIRE_WEIGHTS_HEADS] = "weights_heads",
    [WIRE_WEIGHTS_QUERIES] = "weights_queries",
};

/* Returns the member of that name, or WIRE_NUM_MEMBERS. */
static int find_member(const char *name, size_t length) {
    int member = 0;
    while (member < WIRE_NUM_MEMBERS &&
           (strlen(names[member]) != length || memcmp(names[member], name, length) != 0))
        member++;
    return member;
}

static bool refuse_unknown(const char *key, size_t length,
                           struct wire_problem *ret_problem) {
    char shown[sizeof ret_problem->field];
    if (length > sizeof shown - 1)
        length = sizeof shown - 1;
    memcpy(shown, key, length);
    shown[length] = '\0';
    wire_problem_set(ret_problem, 400, "Unknown key", shown,
                     "'%.64s' is no key of a request; leave it out. Known are model, "
                     "queries, keys, values, valid_lens, causal, need_weights, "
                     "head_mask, weights_heads and weights_queries",
                     shown);
    return false;
}

/* Says which member the key at `span`, quotes included, names. */
static bool read_key(const struct wire_cursor *cursor, const struct wire_span *span,
                     int *ret_member) {
    const char *text = span->start + 1;
    size_t length = (size_t)(span->end - span->start) - 2;
    *ret_member = find_member(text, length);
    if (*ret_member < WIRE_NUM_MEMBERS)
        return true;
    if (length > KEY_DECODED)
        return refuse_unknown(text, length, cursor->problem);
    /* It may be written with escapes, or be no text at all. */
    json_t *key = wire_json_load(cursor->body, span, cursor->problem);
    if (key == NULL)
        return false;
    text = json_string_value(key);
    length = json_string_length(key);
    *ret_member = find_member(text, length);
    bool known =
        *ret_member < WIRE_NUM_MEMBERS || refuse_unknown(text, length, cursor->problem);
    json_decref(key);
    return known;
}

/* Finds one member, from its key on. */
static bool scan_member(struct wire_cursor *cursor, struct wire_native_scan *scan,
                        bool seen[WIRE_NUM_MEMBERS]) {
    struct wire_span key, value;
    int member;
    if (wire_cursor_next(cursor) != '"')
        return wire_refuse_syntax(cursor, NULL, "a key expected");
    if (!wire_cursor_skip(cursor, 1, &key) || !read_key(cursor, &key, &member))
        return false;
    if (seen[member])
        return wire_refuse_duplicate(cursor->body, &key, cursor->problem);
    seen[member] = true;
    if (wire_cursor_next(cursor) != ':')
        return wire_refuse_syntax(cursor, NULL, "':' expected");
    cursor->at++;
    wire_cursor_next(cursor);
    if (!wire_cursor_skip(cursor, 1, &value))
        return false;
    /* null means the same as leaving it out. */
    if (value.end - value.start != 4 || memcmp(value.start, "null", 4) != 0)
        scan->members[member] = value;
    return true;
}

/* Finds the members of the object at the cursor. */
static bool scan_object(struct wire_cursor *cursor, struct wire_native_scan *scan) {
    bool seen[WIRE_NUM_MEMBERS] = {false};
    cursor->at++;
    char c = wire_cursor_next(cursor);
    while (c != '}') {
        if (!scan_member(cursor, scan, seen))
            return false;
        c = wire_cursor_next(cursor);
        if (c != ',' && c != '}')
            return wire_refuse_syntax(cursor, NULL, "',' or '}' expected");
        cursor->at += c == ',';
    }
    cursor->at++;
    wire_cursor_next(cursor);
    return cursor->at == cursor->end ||
           wire_refuse_syntax(cursor, NULL, "end of file expected");
}

static bool refuse_body(const struct wire_cursor *cursor) {
    const char *type = wire_cursor_type(cursor);
    if (type == NULL)
        return wire_refuse_syntax(cursor, NULL, "an object expected");
    wire_problem_set(cursor->problem, 400, "Wrong type", NULL,
                     "the body is not a JSON object but of type %s; send an object with "
                     "the key queries",
                     type);
    strcpy(cursor->problem->expected, "\"object\"");
    snprintf(cursor->problem->got, sizeof cursor->problem->got, "\"%s\"", type);
    return false;
}

static void add(size_t *sum, size_t bytes) {
    if (!size_add(*sum, bytes, sum))
        *sum = SIZE_MAX;
}

/* Returns the most bytes that decoding takes. */
static size_t cost_of(const struct wire_native_scan *scan) {
    size_t bytes = 0;
    for (int i = 0; i < WIRE_NUM_MEMBERS; i++) {
        const struct wire_span *span = &scan->members[i];
        if (span->start == NULL)
            continue;
        switch ((enum wire_member)i) {
        case WIRE_QUERIES:
        case WIRE_KEYS:
        case WIRE_VALUES:
            add(&bytes, wire_tensor_cost(span));
            break;
        case WIRE_WEIGHTS_QUERIES: /* and a byte for each row of queries */
            add(&bytes, scan->members[WIRE_QUERIES].commas + 1 + ARENA_ALIGNMENT);
            __attribute__((fallthrough));
        case WIRE_WEIGHTS_HEADS: /* and a byte for each head of the model */
        case WIRE_VALID_LENS:
        case WIRE_HEAD_MASK:
            if (!size_add_mul(&bytes, span->commas + 1, sizeof(size_t)))
                bytes = SIZE_MAX;
            add(&bytes, ARENA_ALIGNMENT);
            break;
        case WIRE_MODEL:
        case WIRE_CAUSAL:
        case WIRE_NEED_WEIGHTS:
        case WIRE_NUM_MEMBERS:
            wire_json_cost(span->start, (size_t)(span->end - span->start), &bytes);
            break;
        }
    }
    return bytes;
}

bool wire_native_scan(const char *body, size_t size, struct wire_native_scan *ret_scan,
                      struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {body, body, body + size, ret_problem};
    struct wire_native_scan scan = {0};
    if (size == 0) {
        wire_problem_set(ret_problem, 400, "Malformed JSON", NULL,
                         "line 1, column 1: the body is empty; send one JSON object");
        return false;
    }
    if (size >= 3 && memcmp(body, "\xEF\xBB\xBF", 3) == 0) {
        wire_problem_set(ret_problem, 400, "Malformed JSON", NULL,
                         "line 1, column 1: the body begins with a byte order mark; send "
                         "UTF-8 without one");
        return false;
    }
    if (wire_cursor_next(&cursor) != '{')
        return refuse_body(&cursor);
    if (!scan_object(&cursor, &scan))
        return false;
    scan.decode_bytes = cost_of(&scan);
    *ret_scan = scan;
    return true;
}
