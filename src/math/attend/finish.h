/* SPDX-License-Identifier: Apache-2.0 */
/* finish.h: what becomes of projected rows before the attention. */
#ifndef ATTND_MATH_ATTEND_FINISH_H
#define ATTND_MATH_ATTEND_FINISH_H

#include "math/run/run.h"

/* The second part of the first step: clips, norms and rotates what was projected, where
 * layer.finishes, and writes keys into panels. */
void run_finish_rows(const struct run *run);

#endif
