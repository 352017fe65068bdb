/* SPDX-License-Identifier: Apache-2.0 */
/* pass.h: passes over all rows of an input, which threads share. */
#pragma once

#include "math/rows/norm.h"
#include "math/run/run.h"

/* Rows that are converted, normed or copied, strip by strip. */
struct row_pass {
    const float *from; /* [rows, width] */
    float *to;         /* [rows, to_ld] */
    size_t rows, width, to_ld;
    size_t strip_rows;
    const struct kernels *kernels; /* convert; NULL: they do not */
    struct ranges depth;           /* what of a row is converted, at least */
    struct magnitudes range;       /* of rows that are split */
    struct norm norm;              /* norms; without weights, it copies */
};

/* Makes a pass, of so many operations for each number. `from` may be `to` when rows are
 * normed. Sets pass->strip_rows. */
void run_pass(const struct run *run, double flops, struct row_pass *pass);
