/* SPDX-License-Identifier: Apache-2.0 */
/* float_text.h: a float32 as the shortest decimal that reads back to it. */
#ifndef ATTND_WIRE_FLOAT_TEXT_H
#define ATTND_WIRE_FLOAT_TEXT_H

#include <stddef.h>

#define WIRE_FLOAT_TEXT_MAX 16 /* bytes, no terminator: "-1.17549435e-38" is 15 */

/* Writes a finite `value` as a JSON number of the fewest digits that read back to the
 * same float32 and, among those, the closest; returns its length. -0 stays "-0.0".
 * Independent of the locale as long as nobody calls setlocale(). Thread-safe. */
size_t wire_float_text(float value, char text[WIRE_FLOAT_TEXT_MAX]);

#endif
