/* SPDX-License-Identifier: Apache-2.0 */
/* native_scan.c: what a body costs to decode, before it is decoded.
 *
 * jansson takes up to 80 times the size of a hostile body (`{},{},...`), so the limit on
 * bodies is no limit on memory. The figures below are jansson 2.14's allocations on a
 * 64-bit machine, rounded up as glibc's malloc does; tests/unit/test_wire_scan.c measures
 * that they hold. They count what is alive at once; fragmentation and the arena's
 * rounding up to chunks come on top.
 *
 * jansson stops at the first syntax error, and up to there both see the same containers
 * and strings, so the bound holds for bodies that are not JSON, too. */
#include "base/size.h"
#include "wire/native.h"

#include <string.h>

#define SCALAR_BYTES      32 /* an integer or a real; null, true and false take nothing */
#define STRING_BYTES      48 /* besides its text */
#define ARRAY_BYTES       48 /* besides its table */
#define OBJECT_BYTES      224 /* with its first 8 buckets */
#define MEMBER_BYTES      144 /* of an object: pair, copy of the key, buckets */
#define ARRAY_SLOTS_LEAST 8
#define SLOT_BYTES        8
/* Per element: a float, a valid length or a sequence's length. */
#define DECODED_BYTES 8
#define FIXED_BYTES   4096 /* lexer, alignment in the arena */
#define BLOCK_EXTRA   24   /* most that malloc adds to a small block */
#define LARGE_BLOCK   ((size_t)64 * 1024)
/* Most that it adds to one that it maps from the system. */
#define LARGE_BLOCK_EXTRA 8192

struct container {
    bool is_array;
    size_t commas;
};

/* The sums; they saturate at SIZE_MAX. */
struct tally {
    size_t bytes;
    size_t largest_table; /* bytes */
    size_t longest_token; /* bytes */
};

static void add(size_t *sum, size_t bytes) {
    if (!size_add(*sum, bytes, sum))
        *sum = SIZE_MAX;
}

static void add_block(size_t *sum, size_t bytes) {
    add(sum, bytes);
    add(sum, bytes < LARGE_BLOCK ? BLOCK_EXTRA : LARGE_BLOCK_EXTRA);
}

static void note_token(struct tally *tally, size_t length) {
    if (length > tally->longest_token)
        tally->longest_token = length;
}

/* What a container with one more element than commas takes, its elements' own text and
 * containers not included. */
static void close_container(struct tally *tally, const struct container *container) {
    size_t elements = container->commas + 1;
    size_t each = DECODED_BYTES + SCALAR_BYTES;
    if (container->is_array) {
        size_t slots = ARRAY_SLOTS_LEAST;
        while (slots < elements)
            slots *= 2; /* elements are bytes of a body in memory: cannot wrap */
        size_t table = slots * SLOT_BYTES;
        add(&tally->bytes, ARRAY_BYTES + DECODED_BYTES);
        add_block(&tally->bytes, table);
        if (table > tally->largest_table)
            tally->largest_table = table;
    } else {
        add(&tally->bytes, OBJECT_BYTES);
        each += MEMBER_BYTES;
    }
    if (!size_add_mul(&tally->bytes, elements, each))
        tally->bytes = SIZE_MAX;
}

/* Returns the position of the quote that ends the string which begins at `at`, or `size`.
 */
static size_t find_string_end(const char *body, size_t size, size_t at) {
    size_t i = at + 1;
    while (i < size && body[i] != '"')
        i += body[i] == '\\' ? 2 : 1;
    return i < size ? i : size;
}

/* Refuses the bracket at `at`; only now are line and column worth counting. */
static bool refuse_depth(const char *body, size_t at, struct wire_problem *ret_problem) {
    size_t line = 1, column = 1; /* column in characters, as jansson counts */
    for (size_t i = 0; i < at; i++) {
        if (body[i] == '\n') {
            line++;
            column = 1;
        } else if ((body[i] & 0xC0) != 0x80) {
            column++;
        }
    }
    wire_problem_set(
        ret_problem, 400, "Nested too deeply", NULL,
        "line %zu, column %zu: the %dth level of nested lists and objects; a "
        "request needs 4, and %d are read",
        line, column, WIRE_MAX_DEPTH + 1, WIRE_MAX_DEPTH);
    strcpy(ret_problem->expected, "[1,32]");
    strcpy(ret_problem->got, "33");
    _Static_assert(WIRE_MAX_DEPTH == 32, "the two lines above");
    return false;
}

/* Adds everything that the body's containers and strings take. */
static bool tally_body(const char *body, size_t size, struct tally *tally,
                       struct wire_problem *ret_problem) {
    struct container open[WIRE_MAX_DEPTH];
    size_t depth = 0;
    size_t token = 0; /* where the present token began */
    for (size_t i = 0; i < size; i++) {
        switch (body[i]) {
        case '"': {
            size_t end = find_string_end(body, size, i);
            note_token(tally, end - i + 1);
            add(&tally->bytes, STRING_BYTES);
            add_block(&tally->bytes, end - i + 1);
            i = end;
            break;
        }
        case '[':
        case '{':
            if (depth == WIRE_MAX_DEPTH)
                return refuse_depth(body, i, ret_problem);
            open[depth++] = (struct container){.is_array = body[i] == '['};
            break;
        case ',':
            if (depth > 0)
                open[depth - 1].commas++;
            break;
        case ']':
        case '}':
            if (depth > 0)
                close_container(tally, &open[--depth]);
            break;
        case ':':
        case ' ':
        case '\t':
        case '\n':
        case '\r':
            break;
        default:
            continue; /* inside a number or a word */
        }
        note_token(tally, i > token ? i - token : 0);
        token = i + 1;
    }
    note_token(tally, size > token ? size - token : 0);
    while (depth > 0)
        close_container(tally, &open[--depth]);
    return true;
}

bool wire_native_scan(const char *body, size_t size, size_t *ret_decode_bytes,
                      struct wire_problem *ret_problem) {
    struct tally tally = {.bytes = FIXED_BYTES};
    if (!tally_body(body, size, &tally, ret_problem))
        return false;
    /* A growing table is copied, so the one that is given up, half as large, is still
     * there. */
    add_block(&tally.bytes, tally.largest_table / 2);
    /* The lexer keeps the token's text in a buffer that doubles, also by copying. */
    add_block(&tally.bytes, tally.longest_token);
    if (!size_add_mul(&tally.bytes, tally.longest_token, 2))
        tally.bytes = SIZE_MAX;
    *ret_decode_bytes = tally.bytes;
    return true;
}
