/* SPDX-License-Identifier: Apache-2.0 */
/* read.h: reads lists of JSON numbers as float32. */
#pragma once

/* Why and where reading has stopped. White space before that place was skipped. */
enum wire_stop {
    WIRE_STOP_CLOSED,    /* at the ']' after a number */
    WIRE_STOP_NO_NUMBER, /* at what is not a number */
    WIRE_STOP_NO_COMMA,  /* at what is neither ',' nor ']', after a number */
    WIRE_STOP_RANGE,     /* at a number that is out of range for float32 */
    WIRE_STOP_FULL       /* at a number for which there is no room */
};

struct wire_floats {
    const char *at;  /* the next byte to read */
    const char *end; /* of the text; nothing from here on is read */
    float *out;      /* where the next number is written */
    float *out_end;  /* the end of the room for numbers */
    double refused;  /* the number of WIRE_STOP_RANGE; infinite past the largest double */
};

/* Reads numbers with commas between them until something else follows, and returns why it
 * has stopped. A number becomes the float32 nearest to the double nearest to it, ties to
 * even, as with C's (float)strtod() and numpy; -0 is -0.0. The grammar is that of RFC
 * 8259. The thread has the C locale. Thread-safe for distinct arguments.
 *
 * Seven digits are read at a time (after Lemire, "Number parsing at a gigabyte per
 * second", 2021, section 4). */
enum wire_stop wire_floats_read(struct wire_floats *floats);

/* Returns the end of the JSON number that begins at `at`, or NULL when none does. */
const char *wire_number_end(const char *at, const char *end);
