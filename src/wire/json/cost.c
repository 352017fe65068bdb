/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c: bounds the memory that jansson needs for a text.
 *
 * jansson needs up to 80 times the size of a hostile text (`{},{},...`), so a limit on
 * the text does not limit memory. The figures below are the allocations of jansson 2.14
 * on a 64-bit machine, rounded up as glibc's malloc does. tests/unit/test_wire_scan.c
 * checks that they hold. They count what is allocated at one time; fragmentation is not
 * counted.
 *
 * jansson stops at the first syntax error. Up to there it finds the same containers and
 * strings as this file does, so the bound also holds for texts that are not JSON. */
#include "wire/json/cost.h"

#include "base/size.h"
#include "wire/json/cursor.h"

#include <assert.h>
#include <stdbool.h>

#define SCALAR_BYTES    32  /* an integer or a real; null, true and false need nothing */
#define STRING_BYTES    48  /* without its text */
#define ARRAY_BYTES     48  /* without its table */
#define OBJECT_BYTES    224 /* with its first 8 buckets */
#define MEMBER_BYTES    144 /* of an object: pair, copy of the key, buckets */
#define TABLE_MIN       8   /* pointers in the table of an array */
#define POINTER_BYTES   8
#define FIXED_BYTES     2048 /* of the lexer */
#define BLOCK_EXTRA_MAX 24   /* that malloc adds to a small block */
/* malloc maps large blocks from the system, and adds more to them. */
#define LARGE_BLOCK           ((size_t)64 * 1024)
#define LARGE_BLOCK_EXTRA_MAX 8192

/* A list or an object whose end was not found yet. */
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
    size_add_saturating(sum,
                        bytes < LARGE_BLOCK ? BLOCK_EXTRA_MAX : LARGE_BLOCK_EXTRA_MAX);
}

static void note_token(struct tally *tally, size_t length) {
    if (length > tally->longest_token)
        tally->longest_token = length;
}

/* Adds the bytes of a container and its scalars, of which it may have one more than
 * commas. The strings and containers in it are added by themselves. */
static void close_container(struct tally *tally, const struct container *container) {
    size_t elements = container->commas + 1;
    size_t element_bytes = SCALAR_BYTES;

    if (container->is_array) {
        size_t capacity = TABLE_MIN;
        while (capacity < elements)
            capacity *= 2; /* cannot wrap: there are fewer elements than bytes of text */
        size_t table = capacity * POINTER_BYTES;
        size_add_saturating(&tally->bytes, ARRAY_BYTES);
        add_block(&tally->bytes, table);
        if (table > tally->largest_table)
            tally->largest_table = table;
    } else {
        size_add_saturating(&tally->bytes, OBJECT_BYTES);
        element_bytes += MEMBER_BYTES;
    }

    if (!size_add_mul(&tally->bytes, elements, element_bytes))
        tally->bytes = SIZE_MAX;
}

/* Adds the bytes of all containers and strings. */
static void tally_text(const char *text, size_t size, struct tally *tally) {
    struct container open[WIRE_DEPTH_MAX];
    size_t depth = 0;
    size_t token = 0; /* where the current token began */

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
            assert(depth < WIRE_DEPTH_MAX);
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

    /* The text may end inside a token, and inside containers. */
    note_token(tally, size > token ? size - token : 0);
    while (depth > 0)
        close_container(tally, &open[--depth]);
}

void wire_json_cost(const char *text, size_t size, size_t *bytes) {
    struct tally tally = {.bytes = FIXED_BYTES};
    tally_text(text, size, &tally);

    /* A table grows by being copied, and the old one is half as large. */
    add_block(&tally.bytes, tally.largest_table / 2);
    /* The lexer copies each token to a buffer, which doubles by being copied as well. */
    add_block(&tally.bytes, tally.longest_token);
    if (!size_add_mul(&tally.bytes, tally.longest_token, 2))
        tally.bytes = SIZE_MAX;
    size_add_saturating(bytes, tally.bytes);
}
