/* SPDX-License-Identifier: Apache-2.0 */
/* share_inputs.h: requests of which some inputs are one tensor. */
#ifndef ATTND_TESTS_SHARE_INPUTS_H
#define ATTND_TESTS_SHARE_INPUTS_H

#include "random_model.h"

/* Which inputs of a request are one tensor. */
enum sharing { ALL_DIFFER, VALUES_ARE_KEYS, ALL_ARE_ONE, SHARING_COUNT };

/* Makes inputs one tensor. Where all are one, lengths of keys are those of queries in
 * another order. */
static void share_inputs(struct random_request *r, enum sharing sharing) {
    size_t count = r->request.num_sequences, row = 0;

    if (sharing != ALL_DIFFER)
        r->request.values = r->request.keys;
    if (sharing != ALL_ARE_ONE)
        return;
    r->request.keys = r->request.values = r->request.queries;
    for (size_t s = 0; s < count; s++) {
        size_t key_len = r->query_lens[count - 1 - s];
        r->key_lens[s] = key_len;
        for (size_t q = 0; r->valid_lens != NULL && q < r->query_lens[s]; q++, row++) {
            size_t at = r->request.valid_lens_per_query ? row : s;
            if (r->valid_lens[at] > key_len)
                r->valid_lens[at] = key_len;
        }
        if (r->prefix_lens != NULL && r->prefix_lens[s] > key_len)
            r->prefix_lens[s] = key_len;
    }
}

#endif
