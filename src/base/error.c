/* SPDX-License-Identifier: Apache-2.0 */
/* error.c: the text of each status, and the formatting of an error's line. */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const status_texts[ATTN_E_STATUS_COUNT] = {
    [ATTN_OK] = "ok",
    [ATTN_E_NOMEM] = "out of memory",
    [ATTN_E_OVERFLOW] = "size too large",
    [ATTN_E_SHAPE] = "sizes disagree",
    [ATTN_E_VALUE] = "value out of range",
    [ATTN_E_FORMAT] = "malformed file",
    [ATTN_E_UNSUPPORTED] = "not supported",
    [ATTN_E_IO] = "input or output error",
    [ATTN_E_STOPPED] = "stopped",
};

const char *attn_status_text(attn_status status) {
    if ((unsigned)status >= ATTN_E_STATUS_COUNT)
        return "unknown status";
    return status_texts[status];
}

attn_status error_set(attn_error *ret_error, attn_status status, const char *format,
                      ...) {
    if (ret_error == NULL)
        return status;

    ret_error->status = status;
    va_list args;
    va_start(args, format);
    if (vsnprintf(ret_error->text, sizeof ret_error->text, format, args) < 0)
        ret_error->text[0] = '\0';
    va_end(args);

    for (char *c = ret_error->text; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~')
            *c = '?';
    }
    return status;
}

void divisors_print(size_t number, char ret_text[DIVISORS_TEXT_SIZE]) {
    enum { DIVISOR_TEXT_SIZE = 24 };
    size_t size = 0;

    ret_text[0] = '\0';
    for (size_t n = 1; n <= number && size + DIVISOR_TEXT_SIZE < DIVISORS_TEXT_SIZE;
         n++) {
        if (number % n == 0)
            size += (size_t)snprintf(ret_text + size, DIVISOR_TEXT_SIZE, "%s%zu",
                                     n > 1 ? ", " : "", n);
    }
}
