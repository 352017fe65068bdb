/* SPDX-License-Identifier: Apache-2.0 */
/* integer_list.h: reads the integers of a field, from text or an array, in one order and
 * with the same checks. */
#pragma once

#include "wire/fields/decoder.h"

/* The things that an axis of a list counts. */
enum wire_axis {
    WIRE_AXIS_SEQUENCES,
    WIRE_AXIS_ROWS,     /* queries or keys of a sequence */
    WIRE_AXIS_SECTIONS, /* of a position: time, row and column */
    WIRE_AXIS_ANY,      /* as many as the request has, of each sequence alike */
    WIRE_AXIS_PAIR
};

/* A shape that a list may have. */
struct wire_form {
    size_t rank;
    enum wire_axis axes[3];
};

#define WIRE_LIMIT_MAX 80 /* bytes, with the terminator */

struct wire_integer_list {
    const struct wire_source *source;
    const struct wire_value *value;
    const struct wire_tensor *rows; /* whose sequences and rows the axes count */
    const char *thing;              /* that a row is: "query" */
    const struct wire_form *forms;  /* [num_forms]; of several, the first that fits */
    size_t num_forms;
    const char *pair; /* what a pair must have, for errors */
    bool from_end;    /* negative integers count from the end, see wire_integer_read() */
    bool nulls;       /* null stands for the pair 0, 0 */
    /* Whether integer `i` may have that value. Else sets list->limit, or the problem of
     * the source. Called in the order of the list; NULL: those up to limit.max may, or
     * all where the limit has no text. */
    bool (*allow)(struct wire_integer_list *list, size_t i, size_t number);
    void *context;
    /* Why an integer is refused; "": not because of its value. */
    struct {
        int64_t least;
        size_t max;
        char text[WIRE_LIMIT_MAX]; /* "there are 12 heads" */
    } limit;

    /* Set by reading. */
    const struct wire_form *form; /* the one that it has */
    size_t levels;                /* of lists, or axes, in the request */
    size_t *numbers;              /* [count], sequence after sequence, in the arena */
    size_t count;
    size_t any; /* the size of WIRE_AXIS_ANY; 1 without that axis */
    bool flat;  /* text without lists inside, though the shape has more axes */
};

/* Returns a list to be read, whose rows are the queries. */
static inline struct wire_integer_list
wire_integer_list_make(const struct wire_decoder *decoder, const struct wire_value *value,
                       const struct wire_form *forms, size_t num_forms) {
    return (struct wire_integer_list){.source = decoder->source,
                                      .value = value,
                                      .rows = &decoder->tensors.queries,
                                      .thing = "query",
                                      .forms = forms,
                                      .num_forms = num_forms,
                                      .pair =
                                          "send a first key, and the key after the last"};
}

/* Returns whether the form of a list that was read has the axis. */
bool wire_form_has(const struct wire_form *form, enum wire_axis axis);

/* Returns the most integers that a value can have. With `nulls`, null stands for two. */
size_t wire_integers_most(const struct wire_value *value, bool nulls);

/* Reads the integers of list->value. Returns false with the problem of the source set:
 * Malformed JSON, Wrong type, Wrong dtype, Wrong rank, Empty tensor, Shape mismatch,
 * Uneven rows, Out of range, Out of memory. */
bool wire_integer_list_read(struct wire_integer_list *list);

/* Repeats the integers of a list that was read, which are those of one sequence, for all
 * sequences of list->rows, which are as long: Out of memory. */
bool wire_integer_list_repeat(struct wire_integer_list *list);
