/* SPDX-License-Identifier: Apache-2.0 */
/* wordlist.h: texts of words that are separated by spaces or '|'. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Returns whether one of the words is `word`; NULL has none. */
static inline bool wordlist_has(const char *words, const char *word) {
    size_t size = strlen(word);

    while (words != NULL && *words != '\0') {
        size_t next = strcspn(words, " |");
        if (next == size && strncmp(words, word, size) == 0)
            return true;
        words += next + strspn(words + next, " |");
    }
    return false;
}

/* Returns whether one of the words is a text, a number or a boolean as JSON has it. */
static inline bool wordlist_has_value(const char *words, const json_t *value) {
    char text[32] = "";

    if (json_is_string(value))
        return wordlist_has(words, json_string_value(value));
    if (json_is_number(value))
        snprintf(text, sizeof text, "%.17g", json_number_value(value));
    else if (json_is_boolean(value))
        snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    return wordlist_has(words, text);
}
