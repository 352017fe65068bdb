/* SPDX-License-Identifier: Apache-2.0 */
/* write.h: JSON written by hand into a buffer. Each returns ATTN_OK or
 * ATTN_E_NOMEM. */
#ifndef ATTND_WIRE_JSON_WRITE_H
#define ATTND_WIRE_JSON_WRITE_H

#include "base/buf.h"

#define WIRE_JSON_BYTE_MAX 6 /* bytes that one byte of a string can become: \u001f */

/* Adds `text` as a JSON string, quotes included. Bytes that are not UTF-8 become '?'. */
attn_status wire_json_add_string(struct buf *body, const char *text);

/* Writes `text` as wire_json_add_string() does, at most WIRE_JSON_BYTE_MAX bytes for each of
 * its own and 3 more; returns the end, where there is no terminator. */
char *wire_json_put_string(char *out, const char *text);

/* Adds what printf() makes of the format: at most 255 bytes, which the caller sees to. */
__attribute__((format(printf, 2, 3))) attn_status
wire_json_add_format(struct buf *body, const char *format, ...);

#endif
