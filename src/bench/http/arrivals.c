/* SPDX-License-Identifier: Apache-2.0 */
/* arrivals.c: see arrivals.h. */
#include "bench/http/arrivals.h"

#include <math.h>

int64_t load_arrivals_next(struct load_arrivals *arrivals) {
    double gaps = 1;
    if (arrivals->poisson) /* of a number in (0, 1] */
        gaps = -log(((double)(load_random(&arrivals->state) >> 11) + 1) * 0x1p-53);
    arrivals->at_ns += gaps * arrivals->gap_ns;
    return (int64_t)arrivals->at_ns;
}
