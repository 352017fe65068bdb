/* SPDX-License-Identifier: Apache-2.0 */
/* even.h: what a head would do that weighs all allowed keys alike. */
#ifndef ATTND_MATH_HEADS_EVEN_H
#define ATTND_MATH_HEADS_EVEN_H

#include "math/run/run.h"

/* Writes what even weights amount to in the rows of each panel of queries to
 * run->even_sums. The panels are tasks, since unordered keys are looked at one by one. */
void heads_even(const struct run *run);

#endif
