/* SPDX-License-Identifier: Apache-2.0 */
/* print.h: a float32 as the shortest decimal that reads back to it. */
#ifndef ATTND_WIRE_DECIMAL_PRINT_H
#define ATTND_WIRE_DECIMAL_PRINT_H

#include <stddef.h>

#define WIRE_FLOAT_PRINT_MAX  16 /* bytes of a number: "-0.0000" and nine digits */
#define WIRE_FLOAT_PRINT_ROOM 24 /* bytes that may be written to */

/* Writes a finite `value` as a JSON number of the fewest digits that read back to the
 * same float32 and, among those, the closest; returns its length, at most
 * WIRE_FLOAT_PRINT_MAX. What follows it in `text` is undefined. No terminator.
 *
 * A decimal exponent of -5..12 is written positionally ("0.00002", "1000000000000.0"),
 * any other with an exponent ("1e-6", "1.5e+20"); -0 stays "-0.0". Does not know the
 * locale. Thread-safe. */
size_t wire_float_print(float value, char text[WIRE_FLOAT_PRINT_ROOM]);

/* Writes the same for each of `count` values, with a comma after each; returns where it
 * ends. `text` has room for WIRE_FLOAT_PRINT_MAX + 1 bytes for each, and
 * WIRE_FLOAT_PRINT_ROOM more. */
char *wire_floats_print(const float *values, size_t count, char *text);

#endif
