/* SPDX-License-Identifier: Apache-2.0 */
/* items.h: divides a step of the attention into items of its sequences, which threads
 * share. The rows of all sequences are contiguous. */
#ifndef ATTND_MATH_ATTEND_ITEMS_H
#define ATTND_MATH_ATTEND_ITEMS_H

#include "math/run/run.h"

/* Calls work() for all items of a step, of so many operations in all: with some items of
 * one sequence at a time, by their numbers in the sequence. count() returns how many
 * items a sequence has. run->first_items says how many are before each sequence, until
 * the next call. */
void run_items(const struct run *run, double flops,
               size_t (*count)(const struct run *run, size_t sequence),
               void (*work)(const struct run *run, const struct sequence_position *at,
                            struct range items, size_t thread));

#endif
