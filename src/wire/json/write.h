/* SPDX-License-Identifier: Apache-2.0 */
/* write.h: strings and numbers of JSON. Texts around them are added by base/buf.h. */
#pragma once

#include "base/buf.h"
#include "wire/decimal/print.h"

#define WIRE_JSON_BYTE_MAX 6 /* bytes that one byte of a string can become: \u001f */

/* Adds `text` as a JSON string, quotes included. Bytes that are not UTF-8 become '?'. */
void wire_json_add_string(struct buf *body, const char *text);

/* Writes what wire_json_add_string() adds to `out`, without a terminator: at most
 * WIRE_JSON_BYTE_MAX bytes for each byte of `text`, and 3 more. Returns the end. */
char *wire_json_put_string(char *out, const char *text);

/* Writes a number to `out`, which has room for WIRE_FLOAT_PRINT_ROOM bytes; null when it
 * is not finite. Returns the end. */
char *wire_json_put_number(char *out, float number);
