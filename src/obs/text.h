/* SPDX-License-Identifier: Apache-2.0 */
/* obs/text.h: writes metrics as Prometheus reads them, in its text format 0.0.4.
 *
 *     obs_text_family(&text, "attnd_workers", OBS_GAUGE, "Workers.");
 *     obs_text_value(&text, NULL, 0, 4);
 *
 * All samples of a family follow it. Thread-safe for distinct texts. */
#pragma once

#include "base/buf.h"
#include "obs/histogram.h"

#define OBS_TEXT_MEDIA_TYPE "text/plain; version=0.0.4; charset=utf-8"

enum obs_type { OBS_COUNTER, OBS_GAUGE, OBS_HISTOGRAM };

struct obs_label {
    const char *name;
    const char *value; /* any text; it is escaped */
};

/* The writer; `body`, which is borrowed, keeps the first error. */
struct obs_text {
    struct buf *body;
    const char *family; /* of the samples that follow */
};

/* Begins a family of samples. `name` and `help` are constant; `help` is one line. */
void obs_text_family(struct obs_text *text, const char *name, enum obs_type type,
                     const char *help);

/* Writes one sample, of a counter or gauge. */
void obs_text_value(struct obs_text *text, const struct obs_label *labels,
                    size_t num_labels, double value);

/* Writes one histogram, which has one label of its own: a sample for each bucket, the
 * sum, and the count. */
void obs_text_histogram(struct obs_text *text, const struct obs_label *label,
                        const struct obs_scale *scale,
                        const struct obs_histogram *histogram);
