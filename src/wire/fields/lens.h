/* SPDX-License-Identifier: Apache-2.0 */
/* lens.h: the lengths of a batch of arrays, which query_lens and key_lens give where its
 * rows have no padding. Functions that return bool return false with the problem of the
 * source set. */
#pragma once

#include "wire/fields/source.h"

/* Returns the value with the lengths of queries, keys or values: query_lens, but key_lens
 * for keys and values when the request has it; NULL when it has none. */
const struct wire_value *wire_lens_find(const struct wire_source *source,
                                        const struct wire_value *value);

/* Refuses lengths that no tensor needs, so that they are not ignored silently: Missing
 * key, Wrong rank. */
bool wire_lens_check_needed(const struct wire_source *source);

/* Checks the rank of a tensor whose lengths are `lens`. */
bool wire_lens_check_rank(const struct wire_source *source,
                          const struct wire_value *value, const struct wire_value *lens);

/* Reads the lengths of a tensor without padding, which must add up to its rows. */
bool wire_lens_read(const struct wire_source *source, const struct wire_value *value,
                    const struct wire_value *lens, struct wire_tensor *tensor);

/* Makes the lengths of a tensor whose sequences are equally long. */
bool wire_lens_make(const struct wire_source *source, size_t num_sequences,
                    struct wire_tensor *tensor);
