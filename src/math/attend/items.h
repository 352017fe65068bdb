/* SPDX-License-Identifier: Apache-2.0 */
/* items.h: divides a step of the attention into items of its sequences, which threads
 * share. The rows of all sequences are contiguous. */
#ifndef ATTND_MATH_ATTEND_ITEMS_H
#define ATTND_MATH_ATTEND_ITEMS_H

#include "math/run.h"

/* Where a sequence is. */
struct sequence_position {
    size_t sequence;
    bool direct;                   /* see plan_is_direct() */
    bool grouped;                  /* see plan_is_grouped() */
    size_t first_query, first_key; /* of the sequence, in the batch */
    size_t first_projected;        /* likewise, among the keys that are projected */
    size_t first_direct;           /* likewise, among the rows of direct sequences */
    size_t first_weight;           /* of the sequence, in the result's weights */
};

/* Calls work() for all items of a step, of so many operations in all: with some items of
 * one sequence at a time, by their numbers in the sequence. count() returns how many
 * items a sequence has. run->first_items says how many are before each sequence, until
 * the next call. */
void run_items(const struct run *run, double flops,
               size_t (*count)(const struct run *run, size_t sequence),
               void (*work)(const struct run *run, const struct sequence_position *at,
                            struct range items, size_t thread));

#endif
