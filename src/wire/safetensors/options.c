/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: finds and reads the strings of __metadata__. */
#include "wire/safetensors/options.h"

#include "wire/decimal/read.h"
#include "wire/json/object.h"
#include "wire/names.h"

#include <stdio.h>
#include <string.h>

static const char *const option_names[WIRE_NUM_OPTIONS] = {
    [WIRE_OPTION_MODEL] = "model",
    [WIRE_OPTION_NEED_WEIGHTS] = "need_weights",
    [WIRE_OPTION_CAUSAL] = "causal",
    [WIRE_OPTION_WINDOW] = "window",
    [WIRE_OPTION_NEED] = "need",
    [WIRE_OPTION_TIMEOUT_MS] = "timeout_ms",
    [WIRE_OPTION_PRIORITY] = "priority",
    [WIRE_OPTION_TOP_K] = "top_k",
    [WIRE_OPTION_BLOCK] = "block",
    [WIRE_OPTION_NUM_HEADS] = "num_heads",
    [WIRE_OPTION_NUM_KV_HEADS] = "num_kv_heads",
    [WIRE_OPTION_SCALE] = "scale",
    [WIRE_OPTION_SOFTCAP] = "softcap",
    [WIRE_OPTION_LAYER] = "layer",
};

/* --- names --- */

bool wire_safetensors_refuse_name(const char *name, bool given, const char *what,
                                  const char *advice, struct wire_problem *ret_problem) {
    char shown[sizeof ret_problem->field];
    const char *remedy = wire_name_remedy(name, given);
    snprintf(shown, sizeof shown, "%s", name);
    if (remedy != NULL)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, shown,
                                "'%.64s' is not %s; %s (options are strings in "
                                "__metadata__, all else is a tensor)",
                                shown, what, remedy);
    return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_KEY, shown,
                            "'%.64s' is not %s; %s", shown, what, advice);
}

/* Returns the option of that name, or WIRE_NUM_OPTIONS. */
static size_t find_option(const char *name,
                          const struct wire_safetensors_options *options) {
    size_t i = options->given ? WIRE_OPTION_CAUSAL : WIRE_OPTION_MODEL;
    size_t end = options->given ? WIRE_NUM_OPTIONS : WIRE_OPTION_NUM_HEADS;

    while (i < end && strcmp(option_names[i], name) != 0)
        i++;
    if (i == (options->stored ? WIRE_OPTION_NUM_KV_HEADS : WIRE_OPTION_LAYER))
        return WIRE_NUM_OPTIONS;
    return i < end ? i : WIRE_NUM_OPTIONS;
}

/* Returns what to do about an unknown option. */
static const char *find_advice(const struct wire_safetensors_options *options) {
    if (options->stored)
        return "remove it, or use one of " WIRE_OPTIONS_LIST_STORED
               " (all else is a tensor)";
    return options->given ? "remove it, or use one of " WIRE_OPTIONS_LIST_GIVEN
                            " (all else is a tensor)"
                          : "remove it, or use one of " WIRE_OPTIONS_LIST
                            " (all else is a tensor)";
}

bool wire_safetensors_find_options(const struct safetensors_header *header,
                                   struct wire_safetensors_options *options) {
    /* jansson does not change the object, but its functions have no const parameter. */
    json_t *metadata = (json_t *)(uintptr_t)safetensors_header_get_metadata(header);
    void *at = json_object_iter(metadata);

    for (; at != NULL; at = json_object_iter_next(metadata, at)) {
        const char *key = json_object_iter_key(at);
        size_t i = find_option(key, options);
        if (i < WIRE_NUM_OPTIONS)
            options->texts[i] = json_string_value(json_object_iter_value(at));
        else if (strcmp(key, "format") != 0) /* torch and others write it */
            return wire_safetensors_refuse_name(key, options->given,
                                                "an option in __metadata__",
                                                find_advice(options), options->problem);
    }
    return true;
}

/* --- words --- */

/* Sets *ret_index to the index of an option in `words`, which NULL ends. Leaves it as it
 * is when the option is left out. */
static bool find_word(const struct wire_safetensors_options *options,
                      enum wire_safetensors_option option, const char *const *words,
                      const char *expected, size_t *ret_index) {
    struct wire_problem *problem = options->problem;
    const char *value = options->texts[option];
    for (size_t i = 0; value != NULL && words[i] != NULL; i++) {
        if (strcmp(words[i], value) == 0) {
            *ret_index = i;
            return true;
        }
    }
    if (value == NULL)
        return true;
    wire_problem_set(problem, WIRE_E_WRONG_TYPE, option_names[option],
                     "%s in __metadata__ is '%.40s'; send one of the strings %s",
                     option_names[option], value, expected);
    snprintf(problem->expected, sizeof problem->expected, "%s", expected);
    strcpy(problem->got, "\"string\"");
    return false;
}

bool wire_safetensors_read_need_weights(const struct wire_safetensors_options *options,
                                        attn_need_weights *ret_need) {
    static const char *const words[] = {"false", "true", "mean", NULL};
    static const attn_need_weights needs[] = {ATTN_WEIGHTS_NONE, ATTN_WEIGHTS_ALL,
                                              ATTN_WEIGHTS_MEAN};
    size_t index = 0;

    if (options->texts[WIRE_OPTION_NEED_WEIGHTS] == NULL)
        return true;
    if (options->texts[WIRE_OPTION_NEED] != NULL)
        return wire_refuse_both_needs(options->problem);
    if (!find_word(options, WIRE_OPTION_NEED_WEIGHTS, words,
                   "[\"false\",\"true\",\"mean\"]", &index))
        return false;
    *ret_need = needs[index];
    return true;
}

/* Reads need, words with commas between them. */
static bool read_need_words(const struct wire_safetensors_options *options,
                            struct wire_need *need) {
    const char *at = options->texts[WIRE_OPTION_NEED];
    for (bool more = at != NULL; more;) {
        at += strspn(at, " ");
        size_t end = strcspn(at, ","), size = end;
        while (size > 0 && at[size - 1] == ' ')
            size--;
        if (!wire_need_add(need, at, size, options->problem))
            return false;
        at += end;
        more = *at++ == ',';
    }
    return true;
}

/* --- numbers --- */

/* Finds an option whose string must be a number of JSON; ret_span->start is NULL when it
 * is left out. */
static bool find_number_option(const struct wire_safetensors_options *options,
                               enum wire_safetensors_option option,
                               struct wire_cursor *ret_cursor,
                               struct wire_span *ret_span) {
    struct wire_problem *problem = options->problem;
    const char *value = options->texts[option];
    *ret_span = (struct wire_span){NULL, NULL, 0, 0};
    if (value == NULL)
        return true;

    *ret_span = (struct wire_span){value, value + strlen(value), 0, 0};
    *ret_cursor = (struct wire_cursor){NULL, value, ret_span->end, problem};
    if (wire_number_end(ret_span->start, ret_span->end) == ret_span->end)
        return true;
    wire_problem_set(problem, WIRE_E_WRONG_TYPE, option_names[option],
                     "%s in __metadata__ is '%.40s'; send a string with a number",
                     option_names[option], value);
    strcpy(problem->expected, "\"number\"");
    strcpy(problem->got, "\"string\"");
    return false;
}

bool wire_safetensors_read_number(const struct wire_safetensors_options *options,
                                  enum wire_safetensors_option option,
                                  double *ret_number) {
    struct wire_cursor cursor;
    struct wire_span span;
    return find_number_option(options, option, &cursor, &span) &&
           wire_number_read(&cursor, &span, option_names[option], ret_number);
}

bool wire_safetensors_read_count(const struct wire_safetensors_options *options,
                                 enum wire_safetensors_option option, const char *thing,
                                 size_t *ret_count) {
    struct wire_cursor cursor;
    struct wire_span span;
    return find_number_option(options, option, &cursor, &span) &&
           wire_count_read(&cursor, &span, option_names[option], thing, ret_count);
}

bool wire_safetensors_read_options(const struct wire_safetensors_options *options,
                                   struct wire_request *request, struct wire_need *need) {
    static const char *const causal[] = {"false", "true", NULL};
    attn_request *batch = &request->batch;
    size_t index = batch->causal;
    struct wire_cursor cursor;
    struct wire_span span;

    if (!find_word(options, WIRE_OPTION_CAUSAL, causal, "[\"false\",\"true\"]", &index))
        return false;
    batch->causal = index == 1;
    return read_need_words(options, need) &&
           find_number_option(options, WIRE_OPTION_WINDOW, &cursor, &span) &&
           wire_window_read(&cursor, &span, &batch->window) &&
           find_number_option(options, WIRE_OPTION_TIMEOUT_MS, &cursor, &span) &&
           wire_timeout_ms_read(&cursor, &span, &request->timeout_ns) &&
           find_number_option(options, WIRE_OPTION_PRIORITY, &cursor, &span) &&
           wire_priority_read(&cursor, &span, &request->priority);
}
