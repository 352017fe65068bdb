/* SPDX-License-Identifier: Apache-2.0 */
/* option.c: finds options. */
#include "config/option.h"

bool option_has_name(const char *option, const char *name, char separator) {
    while (*option != '\0' && *name == (*option == '-' ? separator : *option)) {
        option++;
        name++;
    }
    return *option == '\0' && *name == '\0';
}

size_t option_count(const struct option_set *set) {
    return set->num_own + set->num_shared;
}

const struct option *option_at(const struct option_set *set, size_t i) {
    return i < set->num_own ? &set->own[i] : &set->shared[i - set->num_own];
}

const struct option *option_find(const struct option_set *set, const char *name,
                                 char separator) {
    for (size_t i = 0; i < option_count(set); i++) {
        if (option_has_name(option_at(set, i)->name, name, separator))
            return option_at(set, i);
    }
    return NULL;
}

const struct option *option_find_letter(const struct option_set *set, char letter) {
    for (size_t i = 0; i < option_count(set); i++) {
        if (option_at(set, i)->letter == letter)
            return option_at(set, i);
    }
    return NULL;
}
