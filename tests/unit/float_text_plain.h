/* SPDX-License-Identifier: Apache-2.0 */
/* float_text_plain.h: the oracle of wire_float_print(). */
#ifndef ATTND_TESTS_FLOAT_TEXT_PLAIN_H
#define ATTND_TESTS_FLOAT_TEXT_PLAIN_H

#include "wire/decimal/print.h"

/* Prints as wire_float_print() does. setlocale() must not have been called. */
size_t float_text_plain(float value, char text[WIRE_FLOAT_PRINT_MAX]);

#endif
