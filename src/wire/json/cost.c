/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c: jansson takes up to 80 times the size of a hostile text (`{},{},...`), so
 * a limit on texts is no limit on memory. The figures below are jansson 2.14's
 * allocations on a 64-bit machine, rounded up as glibc's malloc does;
 * tests/unit/test_wire_scan.c measures that they hold. They count what is alive at once;
 * fragmentation comes on top.
 *
 * jansson stops at the first syntax error, and up to there both see the same containers
 * and strings, so the bound holds for texts that are not JSON, too. */
#include "wire/json/cost.h"

#include "base/size.h"
#include "wire/json/cursor.h"

#include <assert.h>
#include <stdbool.h>

#define SCALAR_BYTES    32  /* an integer or a real; null, true and false take nothing */
#define STRING_BYTES    48  /* besides its text */
#define ARRAY_BYTES     48  /* besides its table */
#define OBJECT_BYTES    224 /* with its first 8 buckets */
#define MEMBER_BYTES    144 /* of an object: pair, copy of the key, buckets */
#define ARRAY_SLOTS_MIN 8
#define SLOT_BYTES      8
#define FIXED_BYTES     2048 /* lexer */
#define BLOCK_EXTRA     24   /* most that malloc adds to a small block */
#define LARGE_BLOCK     ((size_t)64 * 1024)
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

static void add_block(size_t *sum, size_t bytes) {
    size_add_saturating(sum, bytes);
    size_add_saturating(sum, bytes < LARGE_BLOCK ? BLOCK_EXTRA : LARGE_BLOCK_EXTRA);
}

static void note_token(struct tally *tally, size_t length) {
    if (length > tally->longest_token)
        tally->longest_token = length;
}

/* What a container with one more element than commas takes, its elements' own text and
 * containers not included. */
static void close_container(struct tally *tally, const struct container *container) {
    size_t elements = container->commas + 1;
    size_t each = SCALAR_BYTES;
    if (container->is_array) {
        size_t thread_scratch = ARRAY_SLOTS_MIN;
        while (thread_scratch < elements)
            thread_scratch *= 2; /* elements are bytes of a text in memory: cannot wrap */
        size_t table = thread_scratch * SLOT_BYTES;
        size_add_saturating(&tally->bytes, ARRAY_BYTES);
        add_block(&tally->bytes, table);
        if (table > tally->largest_table)
            tally->largest_table = table;
    } else {
        size_add_saturating(&tally->bytes, OBJECT_BYTES);
        each += MEMBER_BYTES;
    }
    if (!size_add_mul(&tally->bytes, elements, each))
        tally->bytes = SIZE_MAX;
}

/* Adds everything that containers and strings take. */
static void tally_text(const char *text, size_t size, struct tally *tally) {
    struct container open[WIRE_MAX_DEPTH];
    size_t depth = 0;
    size_t token = 0; /* where the present token began */
    for (size_t i = 0; i < size; i++) {
        switch (text[i]) {
        case '"': {
            size_t end = (size_t)(wire_string_end(text + i, text + size) - text);
            note_token(tally, end - i + 1);
            size_add_saturating(&tally->bytes, STRING_BYTES);
            add_block(&tally->bytes, end - i + 1);
            i = end;
            break;
        }
        case '[':
        case '{':
            assert(depth < WIRE_MAX_DEPTH);
            open[depth++] = (struct container){.is_array = text[i] == '['};
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
}

void wire_json_cost(const char *text, size_t size, size_t *bytes) {
    struct tally tally = {.bytes = FIXED_BYTES};
    tally_text(text, size, &tally);
    /* A growing table is copied, so the one that is given up, half as large, is still
     * there. */
    add_block(&tally.bytes, tally.largest_table / 2);
    /* The lexer keeps the token's text in a buffer that doubles, also by copying. */
    add_block(&tally.bytes, tally.longest_token);
    if (!size_add_mul(&tally.bytes, tally.longest_token, 2))
        tally.bytes = SIZE_MAX;
    size_add_saturating(bytes, tally.bytes);
}
