/* SPDX-License-Identifier: Apache-2.0 */
/* find_family.h: an entry of the table of families. */
#ifndef ATTND_TESTS_FIND_FAMILY_H
#define ATTND_TESTS_FIND_FAMILY_H

#include "weights_file.h"

#include "weights/families/family.h"

/* Returns the family of that model_type, which the table must have. */
static inline const struct family *find_family(const char *type) {
    const struct family *family;
    for (size_t i = 0; (family = family_get(i)) != NULL; i++) {
        if (family_find_type(family, NULL, type) != NULL)
            return family;
    }
    fail_msg("no family %s", type);
    return NULL;
}

#endif
