/* SPDX-License-Identifier: Apache-2.0 */
/* steps.c: see steps.h. */
#include "bench/http/steps.h"

#include "base/error.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reads a decimal number, and the byte behind it. */
static bool read_step(const char **at, double *ret_number) {
    char *end;
    if (!isdigit((unsigned char)**at) || strspn(*at, "0123456789.") > 20)
        return false;
    *ret_number = strtod(*at, &end);
    bool plain = (size_t)(end - *at) == strspn(*at, "0123456789.");
    *at = end;
    return plain;
}

static bool read_steps(const char *text, double steps[LOAD_STEPS_MAX], size_t *count) {
    for (*count = 0; *count < LOAD_STEPS_MAX; text++) {
        if (!read_step(&text, &steps[*count]))
            return false;
        ++*count;
        if (*text != ',')
            return *text == '\0';
    }
    return false;
}

attn_status load_steps_parse(const char *name, const char *text, double max, bool whole,
                             double ret_steps[LOAD_STEPS_MAX], size_t *ret_count,
                             attn_error *ret_error) {
    double min = whole ? 1 : LOAD_RATE_MIN;
    bool valid = read_steps(text, ret_steps, ret_count);
    for (size_t i = 0; valid && i < *ret_count; i++)
        valid = ret_steps[i] >= min && ret_steps[i] <= max &&
                (!whole || ret_steps[i] == floor(ret_steps[i]));
    if (!valid)
        return error_set(ret_error, ATTN_E_VALUE,
                         "--%s: '%.100s' is not a list such as 100,200,400: at most %d "
                         "%snumbers from %g to %.0f",
                         name, text, LOAD_STEPS_MAX, whole ? "whole " : "", min, max);
    return ATTN_OK;
}
