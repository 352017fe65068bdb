/* SPDX-License-Identifier: Apache-2.0 */
/* print.h: prints a float32 as the shortest decimal that reads back to it. */
#pragma once

#include <stddef.h>

#define WIRE_FLOAT_PRINT_MAX  16 /* bytes of a number: "-0.0000" and nine digits */
#define WIRE_FLOAT_PRINT_ROOM 24 /* bytes that may be written to */

/* Writes a finite `value` as a JSON number with the fewest digits that read back to the
 * same float32; of several such numbers, the closest one. Returns its size, at most
 * WIRE_FLOAT_PRINT_MAX. There is no terminator, and the bytes after it are undefined.
 *
 * Numbers whose first digit has an exponent of -5 to 12 are positional ("0.00002",
 * "1000000000000.0"). Others have an exponent ("1e-6", "1.5e+20"). -0 is "-0.0". The
 * locale does not matter. Thread-safe. */
size_t wire_float_print(float value, char text[WIRE_FLOAT_PRINT_ROOM]);

/* Writes `count` values in this way, with a comma after each, and returns the end.
 * `text` has room for WIRE_FLOAT_PRINT_MAX + 1 bytes for each, and
 * WIRE_FLOAT_PRINT_ROOM more. */
char *wire_floats_print(const float *values, size_t count, char *text);
