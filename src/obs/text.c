/* SPDX-License-Identifier: Apache-2.0 */
/* text.c: one line for each sample. */
#include "obs/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_BYTES 32

void obs_text_init(struct obs_text *text, struct buf *body) {
    *text = (struct obs_text){.body = body, .status = ATTN_OK};
}

static void add_bytes(struct obs_text *text, const char *bytes, size_t size) {
    if (text->status == ATTN_OK)
        text->status = buf_append(text->body, bytes, size);
}

static void add_string(struct obs_text *text, const char *string) {
    add_bytes(text, string, strlen(string));
}

/* Returns a number as Prometheus reads it, up to 15 digits: a constant or `buffer`. */
static const char *print_number(double value, char buffer[NUMBER_BYTES]) {
    if (isnan(value))
        return "NaN";
    if (isinf(value))
        return value > 0 ? "+Inf" : "-Inf";
    snprintf(buffer, NUMBER_BYTES, "%.15g", value);
    return buffer;
}

/* Adds the value of a label, with its quotes. */
static void add_quoted_value(struct obs_text *text, const char *value) {
    add_string(text, "\"");
    while (*value != '\0') {
        size_t plain = strcspn(value, "\\\"\n");
        add_bytes(text, value, plain);
        value += plain;
        if (*value == '\0')
            break;
        add_string(text, *value == '\n' ? "\\n" : *value == '"' ? "\\\"" : "\\\\");
        value++;
    }
    add_string(text, "\"");
}

/* Adds a sample of the family; `suffix` follows its name. */
static void add_sample(struct obs_text *text, const char *suffix,
                       const struct obs_label *labels, size_t num_labels, double value) {
    char number[NUMBER_BYTES];

    add_string(text, text->family);
    add_string(text, suffix);
    for (size_t i = 0; i < num_labels; i++) {
        add_string(text, i == 0 ? "{" : ",");
        add_string(text, labels[i].name);
        add_string(text, "=");
        add_quoted_value(text, labels[i].value);
    }
    add_string(text, num_labels > 0 ? "} " : " ");
    add_string(text, print_number(value, number));
    add_string(text, "\n");
}

void obs_text_family(struct obs_text *text, const char *name, enum obs_type type,
                     const char *help) {
    static const char *const types[] = {
        [OBS_COUNTER] = "counter", [OBS_GAUGE] = "gauge", [OBS_HISTOGRAM] = "histogram"};
    const char *const words[] = {"# HELP ", name, " ",         help, "\n# TYPE ",
                                 name,      " ",  types[type], "\n"};

    text->family = name;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        add_string(text, words[i]);
}

void obs_text_value(struct obs_text *text, const struct obs_label *labels,
                    size_t num_labels, double value) {
    add_sample(text, "", labels, num_labels, value);
}

void obs_text_histogram(struct obs_text *text, const struct obs_label *label,
                        const struct obs_scale *scale,
                        const struct obs_histogram_sums *sums) {
    size_t num_labels = label != NULL;
    struct obs_label labels[2] = {{0}};
    char number[NUMBER_BYTES];
    uint64_t values = 0;

    if (label != NULL)
        labels[0] = *label;
    for (size_t i = 0; i <= scale->num_bounds; i++) {
        double bound = i < scale->num_bounds ? (double)scale->bounds[i] * scale->unit
                                             : (double)INFINITY;
        values += sums->buckets[i];
        labels[num_labels] = (struct obs_label){"le", print_number(bound, number)};
        add_sample(text, "_bucket", labels, num_labels + 1, (double)values);
    }
    add_sample(text, "_sum", labels, num_labels, (double)sums->sum * scale->unit);
    add_sample(text, "_count", labels, num_labels, (double)values);
}
