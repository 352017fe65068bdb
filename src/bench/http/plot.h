/* SPDX-License-Identifier: Apache-2.0 */
/* plot.h: an SVG of throughput against latency. */
#pragma once

#include "bench/http/report.h"

/* A step: what is served, and how long it takes. */
struct load_point {
    double served;             /* requests a second */
    double ms[LOAD_QUANTILES]; /* NAN where it is not known */
    bool clean;                /* every request was served */
};

/* Draws the percentiles of `count` steps over their throughput, and appends the file to
 * `svg`, whose status tells whether there was memory. `title` is text. */
void load_plot(const struct load_point *points, size_t count, const char *title,
               struct buf *svg);
