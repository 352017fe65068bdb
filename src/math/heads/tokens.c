/* SPDX-License-Identifier: Apache-2.0 */
/* tokens.c: marks the first key and separators of each sequence, and copies ids as the
 * kernels compare them. */
#include "math/heads/parts.h"

#include "base/pace.h"
#include "math/attend/tokens.h"

/* Returns the last key that is valid for all rows, or the last one. */
static size_t find_last(const struct mask *mask) {
    size_t valid = mask->valid_lens == NULL ? mask->valid_len : mask->key_len;
    return (valid > 0 ? valid : mask->key_len) - 1;
}

/* Marks the keys of one sequence, from the last one back. */
static void mark_sequence(const struct run *run, const struct sequence_position *at) {
    const attn_request *request = run->request;
    int32_t *to_mark = run->to_mark + at->first_key, distance = 0;
    const size_t *token_ids = request->reduce.token_ids;
    int32_t *ids = NULL;
    struct mask mask;

    mask_init(&mask, request, at->sequence, at->first_query, at->first_key);
    if (run->ids != NULL && tokens_are_shared(request, at))
        ids = run->ids + at->first_key;
    for (size_t k = 0; ids != NULL && k < mask.key_len; k++)
        ids[k] = (int32_t)token_ids[at->first_query + k];

    size_t last = find_last(&mask);
    for (size_t k = mask.key_len; k-- > 0;) {
        bool marked = k == 0 || k == last || (ids != NULL && ids[k] == ids[last]);
        distance = marked ? 0 : distance + 1;
        to_mark[k] = distance;
        pace_add(1);
    }
}

void heads_mark(const struct run *run) {
    for (size_t s = 0; s < run->request->num_sequences; s++)
        mark_sequence(run, &run->sequences[s]);
}
