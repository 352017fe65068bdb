/* SPDX-License-Identifier: Apache-2.0 */
/* scan.c: finds the members of a native request, and how much memory decoding needs. */
#include "base/size.h"
#include "wire/json/cost.h"
#include "wire/json/object.h"
#include "wire/json/tensor.h"
#include "wire/native/native.h"
#include "wire/native/rows.h"

/* The keys that requests with and without a model have. */
#define COMMON_NAMES                                                                     \
    [WIRE_NATIVE_QUERIES] = "queries", [WIRE_NATIVE_VALID_LENS] = "valid_lens",          \
    [WIRE_NATIVE_POSITIONS] = "positions",                                               \
    [WIRE_NATIVE_KEY_POSITIONS] = "key_positions", [WIRE_NATIVE_CAUSAL] = "causal",      \
    [WIRE_NATIVE_WINDOW] = "window", [WIRE_NATIVE_NEED] = "need",                        \
    [WIRE_NATIVE_WEIGHTS_HEADS] = "weights_heads",                                       \
    [WIRE_NATIVE_WEIGHTS_QUERIES] = "weights_queries",                                   \
    [WIRE_NATIVE_TIMEOUT_MS] = "timeout_ms", [WIRE_NATIVE_PRIORITY] = "priority",        \
    [WIRE_NATIVE_SPANS] = "spans", [WIRE_NATIVE_TOP_K] = "top_k",                        \
    [WIRE_NATIVE_TOP_IN] = "top_in", [WIRE_NATIVE_TARGETS] = "targets",                  \
    [WIRE_NATIVE_BLOCK] = "block"

/* Those that requests have which do not ask a capture. */
#define SENT_NAMES [WIRE_NATIVE_KEYS] = "keys", [WIRE_NATIVE_VALUES] = "values"

/* Those of requests without a model. */
#define GIVEN_NAMES                                                                      \
    [WIRE_NATIVE_NUM_HEADS] = "num_heads", [WIRE_NATIVE_SCALE] = "scale",                \
    [WIRE_NATIVE_SOFTCAP] = "softcap", [WIRE_NATIVE_SINKS] = "sinks",                    \
    [WIRE_NATIVE_SLOPES] = "slopes", [WIRE_NATIVE_BIAS] = "bias"

static const struct wire_keys native_keys = {
    .owner = "a request",
    .count = WIRE_NATIVE_NUM_MEMBERS,
    .where = "",
    .names = {COMMON_NAMES, SENT_NAMES, [WIRE_NATIVE_MODEL] = "model",
              [WIRE_NATIVE_NEED_WEIGHTS] = "need_weights",
              [WIRE_NATIVE_HEAD_MASK] = "head_mask"},
};

static const struct wire_keys given_keys = {
    .owner = "a request without a model",
    .count = WIRE_NATIVE_NUM_MEMBERS,
    .where = "",
    .given = true,
    .names = {COMMON_NAMES, SENT_NAMES,
              GIVEN_NAMES, [WIRE_NATIVE_NUM_KV_HEADS] = "num_kv_heads"},
};

static const struct wire_keys stored_keys = {
    .owner = "a request for a capture, which has keys and values itself",
    .count = WIRE_NATIVE_NUM_MEMBERS,
    .where = "",
    .given = true,
    .names = {COMMON_NAMES, GIVEN_NAMES, [WIRE_NATIVE_LAYER] = "layer",
              [WIRE_NATIVE_QUERY_ROWS] = "query_rows"},
};

/* Returns the most bytes that reading a list of numbers needs. */
static size_t list_cost(const struct wire_span *span) {
    size_t bytes = ARENA_ALIGNMENT;
    return size_add_mul(&bytes, span->commas + 2, sizeof(size_t)) ? bytes : SIZE_MAX;
}

/* Returns how many sequences a tensor has, when it has a batch axis, else 0. */
static size_t count_batched(const struct wire_native_scan *scan,
                            const struct wire_span *rows) {
    struct wire_cursor cursor = {rows->start, rows->start, rows->end, NULL};
    size_t batched = WIRE_LEVELS_BATCHED + (size_t)scan->heads_axis;
    return rows->start != NULL && wire_cursor_levels(&cursor) == batched ? rows->lists
                                                                         : 0;
}

/* Returns the most bytes that reading targets needs. A list without a batch axis may be
 * that of all sequences of the queries. */
static size_t targets_cost(const struct wire_native_scan *scan) {
    const struct wire_span *span = &scan->members[WIRE_NATIVE_TARGETS];
    const struct wire_cursor cursor = {span->start, span->start, span->end, NULL};
    size_t one = ARENA_ALIGNMENT, bytes = 0, lists = 1;
    size_add_mul_saturating(&one, wire_native_targets_room(span), 2 * sizeof(size_t));
    if (!wire_native_targets_batched(&cursor))
        lists += count_batched(scan, &scan->members[WIRE_NATIVE_QUERIES]);
    size_add_mul_saturating(&bytes, lists, one);
    return bytes;
}

/* Returns the most bytes that reading positions needs. One list may give the
 * positions of all sequences of `rows`, the queries or keys. */
static size_t positions_cost(const struct wire_native_scan *scan,
                             const struct wire_span *span, const struct wire_span *rows) {
    size_t bytes = list_cost(span);
    if (span->lists == 0)
        size_add_mul_saturating(&bytes, count_batched(scan, rows), bytes);
    return bytes;
}

/* Returns the keys, or the queries where they stand in for them. */
static const struct wire_span *find_key_rows(const struct wire_native_scan *scan) {
    const struct wire_span *keys = &scan->members[WIRE_NATIVE_KEYS];
    return keys->start != NULL ? keys : &scan->members[WIRE_NATIVE_QUERIES];
}

/* Returns the most bytes that reading an option needs: a word, a number or need. */
static size_t option_cost(const struct wire_span *span) {
    size_t size = (size_t)(span->end - span->start), bytes = 0;
    if (size <= WIRE_WORD_MAX + 2) /* else not read */
        wire_json_cost(span->start, size, &bytes);
    return bytes;
}

/* Returns the most bytes that decoding one member needs. */
static size_t member_cost(const struct wire_native_scan *scan,
                          enum wire_native_member member) {
    const struct wire_span *span = &scan->members[member];
    const struct wire_span *queries = &scan->members[WIRE_NATIVE_QUERIES];
    size_t bytes = ARENA_ALIGNMENT;

    switch (member) {
    case WIRE_NATIVE_QUERIES:
    case WIRE_NATIVE_KEYS:
    case WIRE_NATIVE_VALUES:
    case WIRE_NATIVE_BIAS:
        return wire_tensor_cost(span);
    case WIRE_NATIVE_WEIGHTS_QUERIES: /* two marks of a byte for each row of queries */
        size_add_saturating(&bytes, 2 * (queries->commas + 1));
        size_add_saturating(&bytes, list_cost(span));
        return bytes;
    case WIRE_NATIVE_WEIGHTS_HEADS: /* up to 64 marks fit into one unit */
        size_add_saturating(&bytes, list_cost(span));
        /* Without a model, there are at most as many heads as numbers. */
        if (scan->heads_axis || scan->members[WIRE_NATIVE_NUM_HEADS].start != NULL)
            size_add_saturating(&bytes, queries->commas + 1);
        return bytes;
    case WIRE_NATIVE_POSITIONS:
        return positions_cost(scan, span, queries);
    case WIRE_NATIVE_KEY_POSITIONS:
        return positions_cost(scan, span, find_key_rows(scan));
    case WIRE_NATIVE_TARGETS:
        return targets_cost(scan);
    case WIRE_NATIVE_VALID_LENS:
    case WIRE_NATIVE_HEAD_MASK:
    case WIRE_NATIVE_SPANS:
    case WIRE_NATIVE_TOP_IN:
    case WIRE_NATIVE_SINKS:
    case WIRE_NATIVE_SLOPES:
    case WIRE_NATIVE_QUERY_ROWS:
        return list_cost(span);
    default:
        return option_cost(span);
    }
}

/* Returns the most bytes that decoding the found members needs. */
static size_t native_decode_cost(const struct wire_native_scan *scan) {
    size_t bytes = 0;

    for (int i = 0; i < WIRE_NATIVE_NUM_MEMBERS; i++) {
        if (scan->members[i].start != NULL)
            size_add_saturating(&bytes, member_cost(scan, (enum wire_native_member)i));
    }
    return bytes;
}

static bool scan_keys(const char *body, size_t size, const struct wire_keys *keys,
                      struct wire_native_scan *ret_scan,
                      struct wire_problem *ret_problem) {
    struct wire_cursor cursor = {body, body, body + size, ret_problem};
    struct wire_native_scan scan = {0};
    if (!wire_body_open(&cursor, keys == &stored_keys ? "layer" : "queries") ||
        !wire_object_scan(&cursor, NULL, 1, keys, scan.members) ||
        !wire_body_close(&cursor))
        return false;

    scan.heads_axis = keys->given && scan.members[WIRE_NATIVE_NUM_HEADS].start == NULL;
    scan.decode_bytes = native_decode_cost(&scan);
    *ret_scan = scan;
    return true;
}

bool wire_native_scan(const char *body, size_t size, struct wire_native_scan *ret_scan,
                      struct wire_problem *ret_problem) {
    return scan_keys(body, size, &native_keys, ret_scan, ret_problem);
}

bool wire_native_scan_given(const char *body, size_t size, bool stored,
                            struct wire_native_scan *ret_scan,
                            struct wire_problem *ret_problem) {
    return scan_keys(body, size, stored ? &stored_keys : &given_keys, ret_scan,
                     ret_problem);
}
