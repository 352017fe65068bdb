/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c: finds the members of a native request, and how much memory decoding needs. */
#include "base/size.h"
#include "wire/json/cost.h"
#include "wire/json/object.h"
#include "wire/json/tensor.h"
#include "wire/native/native.h"

static const struct wire_keys native_keys = {
    .owner = "a request",
    .count = WIRE_NATIVE_NUM_MEMBERS,
    .where = "",
    .names = {[WIRE_NATIVE_MODEL] = "model",
              [WIRE_NATIVE_QUERIES] = "queries",
              [WIRE_NATIVE_KEYS] = "keys",
              [WIRE_NATIVE_VALUES] = "values",
              [WIRE_NATIVE_VALID_LENS] = "valid_lens",
              [WIRE_NATIVE_POSITIONS] = "positions",
              [WIRE_NATIVE_KEY_POSITIONS] = "key_positions",
              [WIRE_NATIVE_CAUSAL] = "causal",
              [WIRE_NATIVE_WINDOW] = "window",
              [WIRE_NATIVE_NEED] = "need",
              [WIRE_NATIVE_NEED_WEIGHTS] = "need_weights",
              [WIRE_NATIVE_HEAD_MASK] = "head_mask",
              [WIRE_NATIVE_WEIGHTS_HEADS] = "weights_heads",
              [WIRE_NATIVE_WEIGHTS_QUERIES] = "weights_queries",
              [WIRE_NATIVE_TIMEOUT_MS] = "timeout_ms",
              [WIRE_NATIVE_PRIORITY] = "priority"},
};

/* Returns the most bytes that reading a list of numbers needs. */
static size_t list_cost(const struct wire_span *span) {
    size_t bytes = ARENA_ALIGNMENT;
    return size_add_mul(&bytes, span->commas + 1, sizeof(size_t)) ? bytes : SIZE_MAX;
}

/* Returns the most bytes that reading positions needs. One list may give the
 * positions of all sequences of `rows`, the queries or keys. */
static size_t positions_cost(const struct wire_span *span, const struct wire_span *rows) {
    struct wire_cursor cursor = {rows->start, rows->start, rows->end, NULL};
    size_t bytes = list_cost(span);
    if (rows->start != NULL && span->lists == 0 &&
        wire_cursor_levels(&cursor) == WIRE_LEVELS_BATCHED)
        size_add_mul_saturating(&bytes, rows->lists, bytes);
    return bytes;
}

/* Returns the keys, or the queries where they stand in for them. */
static const struct wire_span *find_key_rows(const struct wire_native_scan *scan) {
    const struct wire_span *keys = &scan->members[WIRE_NATIVE_KEYS];
    return keys->start != NULL ? keys : &scan->members[WIRE_NATIVE_QUERIES];
}

/* Returns the most bytes that decoding the found members needs. */
static size_t native_decode_cost(const struct wire_native_scan *scan) {
    size_t bytes = 0;

    for (int i = 0; i < WIRE_NATIVE_NUM_MEMBERS; i++) {
        const struct wire_span *span = &scan->members[i];
        if (span->start == NULL)
            continue;
        switch ((enum wire_native_member)i) {
        case WIRE_NATIVE_QUERIES:
        case WIRE_NATIVE_KEYS:
        case WIRE_NATIVE_VALUES:
            size_add_saturating(&bytes, wire_tensor_cost(span));
            break;
        case WIRE_NATIVE_WEIGHTS_QUERIES: /* a mark of a byte for each row of queries */
            size_add_saturating(&bytes, scan->members[WIRE_NATIVE_QUERIES].commas + 1 +
                                            ARENA_ALIGNMENT);
            size_add_saturating(&bytes, list_cost(span));
            break;
        case WIRE_NATIVE_WEIGHTS_HEADS: /* up to 64 marks fit into one unit */
            size_add_saturating(&bytes, list_cost(span));
            size_add_saturating(&bytes, ARENA_ALIGNMENT);
            break;
        case WIRE_NATIVE_POSITIONS:
            size_add_saturating(
                &bytes, positions_cost(span, &scan->members[WIRE_NATIVE_QUERIES]));
            break;
        case WIRE_NATIVE_KEY_POSITIONS:
            size_add_saturating(&bytes, positions_cost(span, find_key_rows(scan)));
            break;
        case WIRE_NATIVE_VALID_LENS:
        case WIRE_NATIVE_HEAD_MASK:
            size_add_saturating(&bytes, list_cost(span));
            break;
        case WIRE_NATIVE_MODEL:
        case WIRE_NATIVE_CAUSAL:
        case WIRE_NATIVE_WINDOW:
        case WIRE_NATIVE_NEED:
        case WIRE_NATIVE_NEED_WEIGHTS:
        case WIRE_NATIVE_TIMEOUT_MS:
        case WIRE_NATIVE_PRIORITY:
        case WIRE_NATIVE_NUM_MEMBERS:
            if ((size_t)(span->end - span->start) <=
                WIRE_WORD_MAX + 2) /* else not read */
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
    if (!wire_body_open(&cursor, "queries") ||
        !wire_object_scan(&cursor, NULL, 1, &native_keys, scan.members) ||
        !wire_body_close(&cursor))
        return false;

    scan.decode_bytes = native_decode_cost(&scan);
    *ret_scan = scan;
    return true;
}
