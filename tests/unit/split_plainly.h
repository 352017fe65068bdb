/* SPDX-License-Identifier: Apache-2.0 */
/* split_plainly.h: what a row leaves for the first key and the rest, by definition. */
#ifndef ATTND_TESTS_SPLIT_PLAINLY_H
#define ATTND_TESTS_SPLIT_PLAINLY_H

#include <attnd/heads.h>
#include <math.h>

/* Adds row `i` of weights [keys]; `itself`: the keys are the queries. */
static void split_plainly(const double *row, size_t keys, size_t i, bool itself,
                          attn_head_sums *sums) {
    double rest = 0;

    for (size_t k = 1; k < keys; k++)
        rest += row[k];
    for (size_t k = 1; k < keys; k++)
        sums->rest_entropy -= row[k] > 0 ? row[k] * log(row[k] / rest) : 0;
    sums->total += rest + row[0];
    sums->rest += rest;
    if (!itself)
        return;
    sums->rest_itself += rest;
    sums->first_self += i == 0 ? row[0] : 0;
    sums->first_previous += i == 1 ? row[0] : 0;
    sums->first_near += i <= 2 ? row[0] : 0;
    sums->first_prefix += row[0];
    sums->first_distance += (double)i * row[0];
}

#endif
