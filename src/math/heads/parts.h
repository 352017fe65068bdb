/* SPDX-License-Identifier: Apache-2.0 */
/* parts.h: the parts of attn_heads_add() that follow the attention. */
#pragma once

#include "math/run/run.h"

/* Adds the products of the heads' contributions over all rows of run->context to `gram`
 * [H, H], and the sum of the squares of all outputs to *squared_norm. The order of the
 * sums does not depend on the threads.
 *
 * A strip of rows is one task. Its products go to run->plan->strip_products, and it needs
 * run->plan->arrays.thread_floats of a thread's scratch. */
void heads_contribute(const struct run *run, double *gram, double *squared_norm);

/* Marks keys and copies ids, run->to_mark and run->ids, before the attention. */
void heads_mark(const struct run *run);

/* Writes what even weights amount to in the rows of each panel of queries to
 * run->even_sums, run->id_places and run->rest_logs, before the attention. The panels are
 * tasks, since unordered keys and ids are looked at one by one. */
void heads_even(const struct run *run);
