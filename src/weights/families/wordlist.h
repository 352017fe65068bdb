/* SPDX-License-Identifier: Apache-2.0 */
/* wordlist.h: texts of words that are separated by spaces. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Returns whether one of the words is `word`; NULL has none. */
static inline bool wordlist_has(const char *words, const char *word) {
    size_t size = strlen(word);

    while (words != NULL && *words != '\0') {
        size_t next = strcspn(words, " ");
        if (next == size && strncmp(words, word, size) == 0)
            return true;
        words += next + strspn(words + next, " ");
    }
    return false;
}
