/* SPDX-License-Identifier: Apache-2.0 */
/* first_key.h: splits what a row attends to into the first key and the rest. Many heads
 * rest most of their weight there, whatever else they do. */
#pragma once

#include <attnd/heads.h>
#include <math.h>

/* Adds the weight `first` of row `row` on key 0; `itself`: the keys are the queries. */
static inline void first_key_add(double first, size_t row, bool itself,
                                 attn_head_sums *sums) {
    if (!itself)
        return;
    sums->first_self += row == 0 ? first : 0;
    sums->first_previous += row == 1 ? first : 0;
    sums->first_near += row <= 2 ? first : 0;
    sums->first_prefix += first;
    sums->first_distance += (double)row * first;
}

/* Adds the weight `rest` of a row on the other keys, whose -w ln w are added already. */
static inline void first_key_add_rest(double rest, bool itself, attn_head_sums *sums) {
    if (!(rest > 0))
        return;
    sums->rest += rest;
    sums->rest_itself += itself ? rest : 0;
    sums->rest_entropy += rest * log(rest);
}

/* Returns -w ln w. */
static inline double first_key_entropy(double weight) {
    return weight > 0 ? -weight * log(weight) : 0;
}
