/* SPDX-License-Identifier: Apache-2.0 */
/* attend.h: the attention of all sequences. */
#ifndef ATTND_MATH_ATTEND_ATTEND_H
#define ATTND_MATH_ATTEND_ATTEND_H

#include "math/run/run.h"

/* The second step: every panel of queries of every head attends. Overwrites the queries,
 * and with bfloat16 the keys and values. */
void run_attend(const struct run *run);

#endif
