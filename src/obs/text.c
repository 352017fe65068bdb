/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: one line for each sample. */
#include "obs/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_BYTES 32

/* Returns a number as Prometheus reads it, up to 15 digits: a constant or `buffer`. */
static const char *print_sample(double value, char buffer[NUMBER_BYTES]) {
    if (isnan(value))
        return "NaN";
    if (isinf(value))
        return value > 0 ? "+Inf" : "-Inf";
    snprintf(buffer, NUMBER_BYTES, "%.15g", value);
    return buffer;
}

/* Adds the value of a label, with its quotes. */
static void add_quoted_value(struct buf *body, const char *value) {
    buf_append_text(body, "\"");
    while (*value != '\0') {
        size_t plain = strcspn(value, "\\\"\n");
        buf_append(body, value, plain);
        value += plain;
        if (*value == '\0')
            break;
        buf_append_text(body, *value == '\n' ? "\\n" : *value == '"' ? "\\\"" : "\\\\");
        value++;
    }
    buf_append_text(body, "\"");
}

/* Adds a sample of the family; `suffix` follows its name. */
static void add_sample(struct obs_text *text, const char *suffix,
                       const struct obs_label *labels, size_t num_labels, double value) {
    char number[NUMBER_BYTES];

    buf_append_format(text->body, "%s%s", text->family, suffix);
    for (size_t i = 0; i < num_labels; i++) {
        buf_append_format(text->body, "%c%s=", i == 0 ? '{' : ',', labels[i].name);
        add_quoted_value(text->body, labels[i].value);
    }
    buf_append_format(text->body, "%s %s\n", num_labels > 0 ? "}" : "",
                      print_sample(value, number));
}

void obs_text_family(struct obs_text *text, const char *name, enum obs_type type,
                     const char *help) {
    static const char *const types[] = {
        [OBS_COUNTER] = "counter", [OBS_GAUGE] = "gauge", [OBS_HISTOGRAM] = "histogram"};

    text->family = name;
    buf_append_format(text->body, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                      types[type]);
}

void obs_text_value(struct obs_text *text, const struct obs_label *labels,
                    size_t num_labels, double value) {
    add_sample(text, "", labels, num_labels, value);
}

void obs_text_histogram(struct obs_text *text, const struct obs_label *label,
                        const struct obs_scale *scale,
                        const struct obs_histogram *histogram) {
    struct obs_label labels[2] = {*label};
    char number[NUMBER_BYTES];
    uint64_t values = 0;

    for (size_t i = 0; i <= scale->num_bounds; i++) {
        double bound = i < scale->num_bounds ? (double)scale->bounds[i] * scale->unit
                                             : (double)INFINITY;
        values += obs_get(&histogram->buckets[i]);
        labels[1] = (struct obs_label){"le", print_sample(bound, number)};
        add_sample(text, "_bucket", labels, 2, (double)values);
    }
    add_sample(text, "_sum", labels, 1, (double)obs_get(&histogram->sum) * scale->unit);
    add_sample(text, "_count", labels, 1, (double)values);
}
