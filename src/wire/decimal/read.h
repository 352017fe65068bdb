/* SPDX-License-Identifier: Apache-2.0 */
/* read.h: JSON numbers read as float32, a list at a time. */
#ifndef ATTND_WIRE_DECIMAL_READ_H
#define ATTND_WIRE_DECIMAL_READ_H

#include <stdbool.h>
#include <stddef.h>

enum wire_stop {
    WIRE_STOP_CLOSED,    /* at the ']' after a number */
    WIRE_STOP_NO_NUMBER, /* at what should have been a number, white space skipped */
    WIRE_STOP_NO_COMMA,  /* at what should have been ',' or ']', white space skipped */
    WIRE_STOP_RANGE,     /* at a number that no float32 holds */
    WIRE_STOP_FULL       /* at a number for which there is no room */
};

struct wire_floats {
    const char *at;  /* the next byte to be read */
    const char *end; /* of the text; nothing from here on is read */
    float *out;      /* where the next number goes */
    float *out_end;
    double refused; /* the number of WIRE_STOP_RANGE */
};

/* Creates the C locale that wire_floats_read() needs; called by wire_init(). Returns false
 * when the C library cannot. */
bool wire_floats_init(void);

/* Reads numbers with commas between them until something else comes, which the result
 * says. A number becomes the float32 that is nearest to the double that is nearest to it,
 * ties to even, as C's (float)strtod() and numpy make it; -0 is -0.0. The grammar is that
 * of RFC 8259, whatever the locale. Thread-safe for distinct arguments.
 *
 * Eight digits are read at a time (Lemire, "Number parsing at a gigabyte per second",
 * 2021, section 4). */
enum wire_stop wire_floats_read(struct wire_floats *floats);

/* Returns the end of the JSON number at `at`, or NULL when there is none. */
const char *wire_number_end(const char *at, const char *end);

#endif
