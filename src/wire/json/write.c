/* SPDX-License-Identifier: Apache-2.0 */
/* write.c: escapes strings, and replaces bytes that are not UTF-8. */
#include "wire/json/write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Returns how many bytes the UTF-8 character at `text` has, or 0 when it is not one (RFC
 * 3629): a stray or missing continuation byte, an overlong form, a surrogate, or a value
 * over U+10FFFF. */
static size_t utf8_size(const unsigned char *text) {
    unsigned lead = text[0];
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2 || lead > 0xF4)
        return 0;

    /* A terminator is not a continuation byte, so nothing past the end is read. */
    size_t size = (size_t)2 + (lead >= 0xE0) + (lead >= 0xF0);
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    }

    if ((lead == 0xE0 && text[1] < 0xA0) || (lead == 0xED && text[1] > 0x9F) ||
        (lead == 0xF0 && text[1] < 0x90) || (lead == 0xF4 && text[1] > 0x8F))
        return 0;
    return size;
}

/* Writes the character at `text` as a part of a JSON string. Returns how many bytes it
 * has in `text`. */
static size_t put_character(const unsigned char *text, char *out, size_t *ret_written) {
    size_t size = utf8_size(text);

    if (size == 0) {
        *out = '?';
        *ret_written = 1;
        return 1;
    }

    if (*text == '"' || *text == '\\') {
        out[0] = '\\';
        out[1] = (char)*text;
        *ret_written = 2;
    } else if (*text < 0x20 || *text == 0x7F) {
        *ret_written = (size_t)sprintf(out, "\\u%04x", *text);
    } else {
        memcpy(out, text, size);
        *ret_written = size;
    }
    return size;
}

char *wire_json_put_string(char *out, const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    *out++ = '"';
    while (*c != '\0') {
        size_t written;
        c += put_character(c, out, &written);
        out += written;
    }
    *out++ = '"';
    return out;
}

void wire_json_add_string(struct buf *body, const char *text) {
    buf_append_text(body, "\"");
    const unsigned char *c = (const unsigned char *)text;
    while (*c != '\0') {
        char escaped[WIRE_JSON_BYTE_MAX + 1];
        size_t written;
        c += put_character(c, escaped, &written);
        buf_append(body, escaped, written);
    }
    buf_append_text(body, "\"");
}

char *wire_json_put_number(char *out, float number) {
    return isfinite(number) ? out + wire_float_print(number, out) : stpcpy(out, "null");
}
