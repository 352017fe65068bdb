/* SPDX-License-Identifier: Apache-2.0 */
/* nearest.h: the known name that a mistyped one probably stands for. Upper case, '_' and
 * '-' do not count. */
#pragma once

#include "base/size.h"

#include <ctype.h>
#include <string.h>

/* Begins as {.typed = NAME}. */
struct nearest {
    const char *typed;
    const char *name; /* the nearest one that was tried; NULL: none is near */
    size_t edits;     /* of it: letters that are missing, too many or wrong */
};

/* Whether so many edits, or fewer, make `a` of `b`. Calls itself as often as `b` has
 * letters, and `edits` times. */
static inline bool nearest_takes(const char *a, const char *b, size_t edits) {
    a += strspn(a, "_-");
    b += strspn(b, "_-");
    const char *next_a = a + (*a != '\0'), *next_b = b + (*b != '\0');
    if (tolower((unsigned char)*a) == tolower((unsigned char)*b))
        return *a == '\0' || nearest_takes(next_a, next_b, edits);
    return edits > 0 &&
           (nearest_takes(next_a, next_b, edits - 1) ||
            nearest_takes(next_a, b, edits - 1) || nearest_takes(a, next_b, edits - 1));
}

/* Takes a known name, if two edits make it at most, and fewer than those before. A short
 * name has few letters to know it by: more than half of them must be right. */
static inline void nearest_try(struct nearest *nearest, const char *name) {
    size_t most = size_min(3, (strlen(nearest->typed) + 1) / 2);
    if (nearest->name != NULL)
        most = nearest->edits;
    for (size_t edits = 0; edits < most; edits++) {
        if (nearest_takes(nearest->typed, name, edits)) {
            nearest->name = name;
            nearest->edits = most = edits;
        }
    }
}
