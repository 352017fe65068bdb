/* SPDX-License-Identifier: Apache-2.0 */
/* model_spec.c: splits the value of --model in place. */
#include "config/model_spec.h"

#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Parses a whole number of at least 1. */
static bool parse_count(const char *text, size_t *ret_count) {
    char *end;

    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    unsigned long long count = strtoull(text, &end, 10);
    if (*end != '\0' || errno != 0 || count == 0 || count > SIZE_MAX)
        return false;
    *ret_count = (size_t)count;
    return true;
}

/* Sets the option of `pair`, KEY=VALUE, and cuts it at the '='. `text` is the whole
 * specification, for errors. */
static attn_status parse_pair(char *pair, const char *text, struct model_spec *spec,
                              attn_error *ret_error) {
    attn_model_options *options = &spec->options;
    char *equals = strchr(pair, '=');
    if (equals == NULL || equals[1] == '\0')
        return error_set(ret_error, ATTN_E_VALUE, "--model %s: '%s' is not KEY=VALUE",
                         text, pair);

    *equals = '\0';
    const char *value = equals + 1;
    if (strcmp(pair, "num_heads") == 0 || strcmp(pair, "context_length") == 0) {
        size_t *count = *pair == 'n' ? &options->num_heads : &options->context_length;
        if (!parse_count(value, count))
            return error_set(ret_error, ATTN_E_VALUE,
                             "--model %s: %s '%s' is not a whole number of at least 1",
                             text, pair, value);
    } else if (strcmp(pair, "causal") == 0) {
        if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
            return error_set(ret_error, ATTN_E_VALUE,
                             "--model %s: causal '%s' is not true or false", text, value);
        options->causal = value;
    } else if (strcmp(pair, "precision") == 0) {
        if (strcmp(value, "f32") != 0 && strcmp(value, "bf16") != 0)
            return error_set(ret_error, ATTN_E_VALUE,
                             "--model %s: precision '%s' is not f32 or bf16", text,
                             value);
        spec->precision = value;
    } else if (strcmp(pair, "layout") == 0) {
        options->layout = value;
    } else if (strcmp(pair, "prefix") == 0) {
        options->prefix = value;
    } else {
        return error_set(ret_error, ATTN_E_VALUE,
                         "--model %s: unknown key '%s'; the keys are num_heads, causal, "
                         "context_length, layout, prefix and precision",
                         text, pair);
    }
    return ATTN_OK;
}

attn_status model_spec_parse(const char *text, struct model_spec *ret_spec,
                             attn_error *ret_error) {
    struct model_spec spec = {.text = strdup(text)};
    if (spec.text == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "--model %s: out of memory", text);

    attn_status status = ATTN_OK;
    char *rest = NULL;
    char *first = strtok_r(spec.text, ",", &rest);
    char *equals = first != NULL ? strchr(first, '=') : NULL;
    if (equals == NULL || equals == first || equals[1] == '\0') {
        status = error_set(ret_error, ATTN_E_VALUE,
                           "--model %s: not NAME=FILE[,KEY=VALUE]...", text);
    } else {
        *equals = '\0';
        spec.name = first;
        spec.path = equals + 1;
    }

    char *pair;
    while (status == ATTN_OK && (pair = strtok_r(NULL, ",", &rest)) != NULL)
        status = parse_pair(pair, text, &spec, ret_error);

    if (status != ATTN_OK) {
        model_spec_deinit(&spec);
        return status;
    }
    *ret_spec = spec;
    return ATTN_OK;
}

void model_spec_deinit(struct model_spec *spec) {
    free(spec->text);
    *spec = (struct model_spec){.text = NULL};
}
