/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const status_texts[ATTND_E_STATUS_COUNT] = {
    [ATTND_OK] = "ok",
    [ATTND_E_NOMEM] = "out of memory",
    [ATTND_E_OVERFLOW] = "size too large",
    [ATTND_E_SHAPE] = "sizes disagree",
    [ATTND_E_VALUE] = "value out of range",
    [ATTND_E_FORMAT] = "malformed file",
    [ATTND_E_UNSUPPORTED] = "not supported",
    [ATTND_E_IO] = "input or output error",
};

const char *attnd_status_text(attnd_status status) {
    if ((unsigned)status >= ATTND_E_STATUS_COUNT)
        return "unknown status";
    return status_texts[status];
}

attnd_status error_set(attnd_error *ret_error, attnd_status status, const char *format,
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
