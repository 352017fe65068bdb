/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads options: words and numbers. */
#include "wire/options.h"

#include "wire/json/list.h"
#include "wire/json/object.h"

#include <attnd/dot_product.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A day. */
#define TIMEOUT_MS_MAX 86400000
#define TIMEOUT_US_MAX UINT64_C(86400000000)

#define WORDS_BYTES 256 /* of all words of need, and what is between them */

bool wire_need_weights_read(const struct wire_cursor *cursor,
                            const struct wire_span *span, attn_need_weights *ret_need) {
    struct wire_place place = {.field = "need_weights"};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    char word[WIRE_WORD_MAX + 1] = "";
    if (span->start == NULL)
        return true;

    const char *type = wire_cursor_type(&there);
    if (type == NULL)
        return wire_refuse_value_type(&there, &place, "boolean");
    if (strcmp(type, "boolean") == 0) {
        *ret_need = *span->start == 't' ? ATTN_WEIGHTS_ALL : ATTN_WEIGHTS_NONE;
        return true;
    }
    if (strcmp(type, "string") == 0 && !wire_word_read(cursor, span, place.field, word))
        return false;
    if (strcmp(word, "mean") != 0)
        return wire_refuse_need_weights(type, cursor->problem);
    *ret_need = ATTN_WEIGHTS_MEAN;
    return true;
}

/* --- need --- */

/* Returns whether a request can have the word of a result. */
static bool has_word(const struct wire_need *need, enum result_id id) {
    return result_table[id].word != NULL &&
           !(need->given && (result_table[id].kinds & RESULT_PROJECTED) != 0);
}

/* Adds the words that a request can have, those that need a projection first. */
static void list_words(const struct wire_need *need, char ret_text[WORDS_BYTES]) {
    const char *last = NULL;

    *ret_text = '\0';
    for (int i = 0; i < 2 * NUM_RESULTS; i++) {
        enum result_id id = i % NUM_RESULTS;
        bool projected = (result_table[id].kinds & RESULT_PROJECTED) != 0;
        if (!has_word(need, id) || projected != (i < NUM_RESULTS))
            continue;
        if (last != NULL)
            ret_text = stpcpy(stpcpy(ret_text, last), ", ");
        last = result_table[id].word;
    }
    sprintf(ret_text - 2, " and %s", last);
}

bool wire_need_add(struct wire_need *need, const char *word, size_t size,
                   struct wire_problem *ret_problem) {
    enum result_id id = 0;
    char words[WORDS_BYTES];

    while (id < NUM_RESULTS &&
           !(has_word(need, id) && strlen(result_table[id].word) == size &&
             memcmp(result_table[id].word, word, size) == 0))
        id++;
    if (id == NUM_RESULTS) {
        list_words(need, words);
        return wire_problem_set(
            ret_problem, WIRE_E_UNKNOWN_OUTPUT, "need", "need has '%.*s'; use %s%s",
            size < 64 ? (int)size : 64, word, words,
            need->given ? " (heads are the outputs: nothing projects them)" : "");
    }
    if (need->has[id])
        return wire_problem_set(ret_problem, WIRE_E_DUPLICATE_OUTPUT, "need",
                                "need has '%s' twice; send each word once",
                                result_table[id].word);
    need->has[id] = true;
    return true;
}

void wire_need_apply(const struct wire_need *need, attn_request *batch) {
    batch->omit_outputs = !need->has[RESULT_OUTPUTS];
    if (need->has[RESULT_WEIGHTS] && batch->need_weights == ATTN_WEIGHTS_NONE)
        batch->need_weights = ATTN_WEIGHTS_ALL;
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        bool *flag = result_flag(batch, id);
        if (flag != NULL)
            *flag = need->has[id];
    }
}

bool wire_refuse_both_needs(struct wire_problem *ret_problem) {
    return wire_problem_set(ret_problem, WIRE_E_OUTPUTS_DISAGREE, "need_weights",
                            "need and need_weights both say what the reply has; send "
                            "need alone, with \"weights\" for those of every head");
}

/* Reads an element of need. */
static bool read_need_word(struct wire_cursor *cursor, struct wire_place *place,
                           void *context) {
    char word[WIRE_WORD_MAX + 1];
    struct wire_span span;
    if (wire_cursor_next(cursor) != '"')
        return wire_refuse_value_type(cursor, place, "string");
    if (!wire_cursor_skip(cursor, place->depth, &span) ||
        !wire_word_read(cursor, &span, place->field, word))
        return false;
    return wire_need_add(context, word, strlen(word), cursor->problem);
}

bool wire_need_read(const struct wire_cursor *cursor, const struct wire_span *span,
                    struct wire_need *need) {
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_place place = {.field = "need"};
    size_t count;
    return span->start == NULL ||
           wire_list_read(&there, &place, 1, SIZE_MAX, read_need_word, need, &count);
}

/* --- numbers --- */

static bool refuse_timeout_ms(const struct wire_cursor *cursor, struct wire_place *place,
                              const char *text) {
    struct wire_problem *problem = cursor->problem;
    char where[WIRE_PLACE_TEXT_MAX];
    wire_cursor_locate(cursor, place);
    wire_place_describe(where, place);
    wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, place->field,
                     "%s is %s; send a number of milliseconds above 0 and up to %d, or "
                     "leave it out",
                     where, text, TIMEOUT_MS_MAX);
    wire_range_print(problem->expected, 0, TIMEOUT_MS_MAX);
    return false;
}

bool wire_timeout_ms_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns) {
    struct wire_place place = {.field = "timeout_ms"};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    size_t size = (size_t)(span->end - span->start);
    char text[WIRE_WORD_MAX + 1];
    if (span->start == NULL)
        return true;
    if (!wire_cursor_at_number(&there))
        return wire_refuse_value_type(&there, &place, "number");
    if (size > WIRE_WORD_MAX)
        return refuse_timeout_ms(&there, &place, "a number of too many digits");

    memcpy(text, span->start, size);
    text[size] = '\0';
    double milliseconds = strtod(text, NULL); /* in the C locale: no other is set */
    if (!(milliseconds > 0 && milliseconds <= TIMEOUT_MS_MAX))
        return refuse_timeout_ms(&there, &place, text);
    *ret_ns = (int64_t)ceil(milliseconds * 1e6);
    return true;
}

/* Reads an integer of 0..`max`, where there is one. */
static bool read_uint_option(const struct wire_cursor *cursor,
                             const struct wire_span *span, const char *field,
                             const char *limit, uint64_t max, uint64_t *ret_number) {
    struct wire_place place = {.field = field};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_span text;
    size_t number;
    if (span->start == NULL)
        return true;
    if (!wire_uint_read(&there, &place, 0, &number, &text))
        return false;
    if (number > max)
        return wire_refuse_index_range(&there, &place, &text, limit, 0, max);
    *ret_number = number;
    return true;
}

bool wire_number_read(const struct wire_cursor *cursor, const struct wire_span *span,
                      const char *field, double *ret_number) {
    struct wire_place place = {.field = field};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    size_t size = (size_t)(span->end - span->start);
    char text[WIRE_WORD_MAX + 1];
    if (span->start == NULL)
        return true;
    if (!wire_cursor_at_number(&there))
        return wire_refuse_value_type(&there, &place, "number");

    double number = (double)INFINITY;
    if (size <= WIRE_WORD_MAX) {
        memcpy(text, span->start, size);
        text[size] = '\0';
        number = strtod(text, NULL); /* in the C locale: no other is set */
    }
    if (!(fabs(number) <= ATTN_SCALE_MAX)) {
        wire_cursor_locate(&there, &place);
        return wire_refuse_float_range(&place, number, ATTN_SCALE_MAX, cursor->problem);
    }
    *ret_number = number;
    return true;
}

bool wire_count_read(const struct wire_cursor *cursor, const struct wire_span *span,
                     const char *field, const char *thing, size_t *ret_count) {
    struct wire_place place = {.field = field};
    struct wire_cursor there = wire_cursor_at(cursor, span);
    struct wire_span text;
    char limit[96];
    if (span->start == NULL)
        return true;
    if (!wire_uint_read(&there, &place, 0, ret_count, &text))
        return false;
    if (*ret_count >= 1 && *ret_count <= INT32_MAX)
        return true;
    snprintf(limit, sizeof limit, "it is %s, at least 1", thing);
    wire_cursor_locate(&there, &place);
    return wire_refuse_int_range(&place, text.start, (size_t)(text.end - text.start),
                                 limit, 1, INT32_MAX, cursor->problem);
}

bool wire_timeout_us_read(const struct wire_cursor *cursor, const struct wire_span *span,
                          int64_t *ret_ns) {
    uint64_t microseconds = 0;
    if (span->start == NULL)
        return true;
    if (!read_uint_option(cursor, span, "timeout",
                          "it is a number of microseconds, at most a day", TIMEOUT_US_MAX,
                          &microseconds))
        return false;
    *ret_ns = (int64_t)microseconds * 1000;
    return true;
}

bool wire_window_read(const struct wire_cursor *cursor, const struct wire_span *span,
                      size_t *ret_window) {
    uint64_t window = *ret_window;
    bool valid = read_uint_option(
        cursor, span, "window", "it is a number of positions, of which 0 means no window",
        ATTN_POSITION_MAX, &window);
    *ret_window = window;
    return valid;
}

bool wire_priority_read(const struct wire_cursor *cursor, const struct wire_span *span,
                        uint32_t *ret_priority) {
    uint64_t priority = *ret_priority;
    bool valid = read_uint_option(cursor, span, "priority",
                                  "it is a place in the order, of which 1 is first",
                                  INT32_MAX, &priority);
    *ret_priority = (uint32_t)priority;
    return valid;
}
