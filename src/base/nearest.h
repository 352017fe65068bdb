/* SPDX-License-Identifier: Apache-2.0 */
/* nearest.h: the known name that a mistyped one probably stands for. Upper case, '_' and
 * '-' do not count. */
#pragma once

#include "base/size.h"

#include <ctype.h>
#include <string.h>

enum {
    NEAREST_LETTERS_MAX = 64, /* of a name; longer ones are like no other */
    NEAREST_EDITS_MAX = 2,    /* letters that are missing, too many or wrong */
};

/* Begins as {.typed = NAME}. */
struct nearest {
    const char *typed;
    const char *name; /* the nearest one that was tried; NULL: none is near */
    size_t edits;     /* of it */
};

/* Returns how many letters of a name count, which it copies, or NEAREST_LETTERS_MAX when
 * they are too many. */
static inline size_t nearest_fold(const char *name,
                                  char ret_letters[NEAREST_LETTERS_MAX]) {
    size_t count = 0;

    for (; *name != '\0' && count < NEAREST_LETTERS_MAX; name++)
        if (*name != '_' && *name != '-')
            ret_letters[count++] = (char)tolower((unsigned char)*name);
    return count;
}

/* Returns the distance of two names in edits (Levenshtein 1966). `row` has those of the
 * letters of `a` so far and each beginning of `b`. */
static inline size_t nearest_count_edits(const char *a, size_t a_size, const char *b,
                                         size_t b_size) {
    size_t row[NEAREST_LETTERS_MAX + 1];

    for (size_t k = 0; k <= b_size; k++)
        row[k] = k;
    for (size_t i = 0; i < a_size; i++) {
        size_t diagonal = row[0]++;
        for (size_t k = 0; k < b_size; k++) {
            size_t replaced = diagonal + (a[i] != b[k]);
            diagonal = row[k + 1];
            row[k + 1] = size_min(replaced, size_min(diagonal, row[k]) + 1);
        }
    }
    return row[b_size];
}

/* Takes a known name, if it is near and nearer than those before. A short name has few
 * letters to know it by: more than half of them must be right. */
static inline void nearest_try(struct nearest *nearest, const char *name) {
    char typed[NEAREST_LETTERS_MAX], known[NEAREST_LETTERS_MAX];
    size_t typed_size = nearest_fold(nearest->typed, typed);
    size_t known_size = nearest_fold(name, known);
    if (typed_size == NEAREST_LETTERS_MAX || known_size == NEAREST_LETTERS_MAX)
        return;

    size_t edits = nearest_count_edits(typed, typed_size, known, known_size);
    size_t most = nearest->name != NULL ? nearest->edits : NEAREST_EDITS_MAX + 1;
    if (edits < most && 2 * edits < typed_size) {
        nearest->name = name;
        nearest->edits = edits;
    }
}
