/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads options: words and numbers. */
#include "wire/fields/readers.h"

#include "wire/decimal/read.h"
#include "wire/json/list.h"

#include <attnd/dot_product.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WORDS_BYTES ((size_t)20 * NUM_RESULTS) /* of all words of need in an error */

/* A day. */
#define TIMEOUT_MS_MAX 86400000

/* Refuses an option that is a string of its own; `wanted` is what to send, `expected`
 * that in JSON. */
static bool refuse_option(const struct wire_source *source,
                          const struct wire_value *value, const char *wanted,
                          const char *expected) {
    struct wire_problem *problem = source->problem;

    wire_problem_set(problem, WIRE_E_WRONG_TYPE, value->name,
                     "%s in __metadata__ is '%.40s'; send %s", value->name,
                     value->text.start, wanted);
    snprintf(problem->expected, sizeof problem->expected, "%s", expected);
    strcpy(problem->got, "\"string\"");
    return false;
}

/* --- words --- */

/* Finds which of some words a string of its own is; NULL ends them. `expected` lists
 * them as JSON. */
static bool find_word(const struct wire_source *source, const struct wire_value *value,
                      const char *const *words, const char *expected, size_t *ret_index) {
    char wanted[64];

    for (*ret_index = 0; words[*ret_index] != NULL; ++*ret_index) {
        if (strcmp(words[*ret_index], value->text.start) == 0)
            return true;
    }
    snprintf(wanted, sizeof wanted, "one of the strings %s", expected);
    return refuse_option(source, value, wanted, expected);
}

bool wire_read_bool(struct wire_decoder *decoder, const struct wire_field *field,
                    const struct wire_value *value) {
    static const char *const words[] = {"false", "true", NULL};
    const struct wire_source *source = decoder->source;
    const struct wire_cursor cursor = wire_value_cursor(source, value);
    bool *to = wire_field_target(decoder, field);
    size_t index;

    if (!wire_has_strings(source))
        return wire_bool_read(&cursor, &value->text, value->name, to);
    if (!find_word(source, value, words, "[\"false\",\"true\"]", &index))
        return false;
    *to = index == 1;
    return true;
}

/* --- need --- */

/* Returns whether a request can have the word of a result. */
static bool has_word(const struct wire_decoder *decoder, enum result_id id) {
    return result_table[id].word != NULL &&
           !(wire_is_given(decoder->source) &&
             (result_table[id].kinds & RESULT_PROJECTED) != 0);
}

/* Lists the words that a request can have, those that need a projection first. */
static void list_words(const struct wire_decoder *decoder, char ret_text[WORDS_BYTES]) {
    const char *words[NUM_RESULTS];
    size_t count = 0;

    for (int i = 0; i < 2 * NUM_RESULTS; i++) {
        enum result_id id = i % NUM_RESULTS;
        bool projected = (result_table[id].kinds & RESULT_PROJECTED) != 0;
        if (has_word(decoder, id) && projected == (i < NUM_RESULTS))
            words[count++] = result_table[id].word;
    }
    wire_names_print(ret_text, WORDS_BYTES, words, count, "and");
}

/* Adds a word: Unknown output, Duplicate output. */
static bool add_word(struct wire_decoder *decoder, const char *word, size_t size) {
    struct wire_problem *problem = decoder->source->problem;
    enum result_id id = 0;
    char words[WORDS_BYTES];

    while (id < NUM_RESULTS &&
           !(has_word(decoder, id) && strlen(result_table[id].word) == size &&
             memcmp(result_table[id].word, word, size) == 0))
        id++;
    if (id == NUM_RESULTS) {
        list_words(decoder, words);
        return wire_problem_set(problem, WIRE_E_UNKNOWN_OUTPUT, "need",
                                "need has '%.*s'; use %s%s", size < 64 ? (int)size : 64,
                                word, words,
                                wire_is_given(decoder->source)
                                    ? " (heads are the outputs: nothing projects them)"
                                    : "");
    }
    if (decoder->needs[id])
        return wire_problem_set(problem, WIRE_E_DUPLICATE_OUTPUT, "need",
                                "need has '%s' twice; send each word once",
                                result_table[id].word);
    decoder->needs[id] = true;
    return true;
}

void wire_need_apply(struct wire_decoder *decoder) {
    attn_request *batch = &decoder->request.batch;

    batch->omit_outputs = !decoder->needs[RESULT_OUTPUTS];
    if (decoder->needs[RESULT_WEIGHTS] && batch->need_weights == ATTN_WEIGHTS_NONE)
        batch->need_weights = ATTN_WEIGHTS_ALL;
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        bool *flag = result_flag(batch, id);
        if (flag != NULL && result_table[id].word != NULL)
            *flag = decoder->needs[id];
    }
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
    return add_word(context, word, strlen(word));
}

/* Reads words with commas between them. */
static bool read_need_words(struct wire_decoder *decoder, const char *at) {
    for (bool more = true; more;) {
        at += strspn(at, " ");
        size_t end = strcspn(at, ","), size = end;
        while (size > 0 && at[size - 1] == ' ')
            size--;
        if (!add_word(decoder, at, size))
            return false;
        at += end;
        more = *at++ == ',';
    }
    return true;
}

bool wire_read_need(struct wire_decoder *decoder, const struct wire_field *field,
                    const struct wire_value *value) {
    const struct wire_source *source = decoder->source;
    struct wire_cursor cursor = wire_value_cursor(source, value);
    struct wire_place place = {.field = value->name};
    size_t count;

    (void)field;
    if (!(wire_has_strings(source) ? read_need_words(decoder, value->text.start)
                                   : wire_list_read(&cursor, &place, 1, SIZE_MAX,
                                                    read_need_word, decoder, &count)))
        return false;
    if (!wire_is_given(source))
        wire_need_apply(decoder);
    return true;
}

/* --- need_weights --- */

static bool refuse_need_weights(const char *got, struct wire_problem *problem) {
    wire_problem_set(problem, WIRE_E_WRONG_TYPE, "need_weights",
                     "need_weights must be false, true (the weights of every head) or "
                     "\"mean\" (over the heads); send one of them, or leave it out");
    snprintf(problem->expected, sizeof problem->expected, "[false,true,\"mean\"]");
    snprintf(problem->got, sizeof problem->got, "\"%s\"", got);
    return false;
}

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
        return refuse_need_weights(type, cursor->problem);
    *ret_need = ATTN_WEIGHTS_MEAN;
    return true;
}

bool wire_read_need_weights(struct wire_decoder *decoder, const struct wire_field *field,
                            const struct wire_value *value) {
    static const char *const words[] = {"false", "true", "mean", NULL};
    static const attn_need_weights needs[] = {ATTN_WEIGHTS_NONE, ATTN_WEIGHTS_ALL,
                                              ATTN_WEIGHTS_MEAN};
    const struct wire_source *source = decoder->source;
    const struct wire_cursor cursor = wire_value_cursor(source, value);
    attn_need_weights *to = wire_field_target(decoder, field);
    size_t index;

    if (wire_is_sent(source, WIRE_FIELD_NEED))
        return wire_problem_set(source->problem, WIRE_E_OUTPUTS_DISAGREE, "need_weights",
                                "need and need_weights both say what the reply has; send "
                                "need alone, with \"weights\" for those of every head");
    if (!wire_has_strings(source))
        return wire_need_weights_read(&cursor, &value->text, to);
    if (!find_word(source, value, words, "[\"false\",\"true\",\"mean\"]", &index))
        return false;
    *to = needs[index];
    return true;
}

bool wire_read_name(const struct wire_source *source, const struct wire_value *value,
                    char word[WIRE_WORD_MAX + 1], struct wire_span *ret_name) {
    struct wire_cursor cursor = wire_value_cursor(source, value);
    struct wire_place place = {.field = value->name};
    size_t number;

    *ret_name = value->text;
    if (value->text.start == NULL || wire_has_strings(source))
        return true;
    if (value == &source->values[WIRE_FIELD_LAYER] && *value->text.start != '"')
        return wire_integer_read(&cursor, &place, 0, false, &number, ret_name);
    if (!wire_word_read(&cursor, &value->text, value->name, word))
        return false;
    *ret_name = (struct wire_span){word, word + strlen(word), 0, 0};
    return true;
}

/* --- numbers --- */

/* Checks that a string of its own is a number of JSON. */
static bool check_number(const struct wire_source *source,
                         const struct wire_value *value) {
    return !wire_has_strings(source) ||
           wire_number_end(value->text.start, value->text.end) == value->text.end ||
           refuse_option(source, value, "a string with a number", "\"number\"");
}

/* Reads a number. *ret_text is its text, and it is infinite when that is too long. */
static bool read_double(const struct wire_source *source, const struct wire_value *value,
                        char ret_text[WIRE_WORD_MAX + 1], double *ret_number) {
    const struct wire_cursor cursor = wire_value_cursor(source, value);
    struct wire_place place = {.field = value->name};
    size_t size = (size_t)(value->text.end - value->text.start);

    if (!check_number(source, value))
        return false;
    if (wire_cursor_number_end(&cursor) == NULL)
        return wire_refuse_value_type(&cursor, &place, "number");
    *ret_number = (double)INFINITY;
    snprintf(ret_text, WIRE_WORD_MAX + 1, "a number of too many digits");
    if (size > WIRE_WORD_MAX)
        return true;
    memcpy(ret_text, value->text.start, size);
    ret_text[size] = '\0';
    *ret_number = strtod(ret_text, NULL); /* in the C locale: no other is set */
    return true;
}

bool wire_read_number(struct wire_decoder *decoder, const struct wire_field *field,
                      const struct wire_value *value) {
    const struct wire_source *source = decoder->source;
    const struct wire_cursor cursor = wire_value_cursor(source, value);
    struct wire_place place = {.field = value->name};
    char text[WIRE_WORD_MAX + 1];
    double number = 0, *to = wire_field_target(decoder, field);

    if (!read_double(source, value, text, &number))
        return false;
    if (!(fabs(number) <= ATTN_SCALE_MAX)) {
        wire_cursor_locate(&cursor, &place);
        return wire_refuse_float_range(&place, number, ATTN_SCALE_MAX, source->problem);
    }
    *to = number;
    return true;
}

bool wire_read_softcap(struct wire_decoder *decoder, const struct wire_field *field,
                       const struct wire_value *value) {
    return wire_read_number(decoder, field, value) &&
           (decoder->given.softcap > 0 ||
            wire_problem_set(decoder->source->problem, WIRE_E_OUT_OF_RANGE, "softcap",
                             "softcap is %g, but must be above 0; leave it out for none",
                             decoder->given.softcap));
}

bool wire_read_timeout_ms(struct wire_decoder *decoder, const struct wire_field *field,
                          const struct wire_value *value) {
    struct wire_problem *problem = decoder->source->problem;
    const struct wire_cursor cursor = wire_value_cursor(decoder->source, value);
    struct wire_place place = {.field = value->name};
    char text[WIRE_WORD_MAX + 1], where[WIRE_PLACE_TEXT_MAX];
    int64_t *to = wire_field_target(decoder, field);
    double milliseconds = 0;

    if (!read_double(decoder->source, value, text, &milliseconds))
        return false;
    if (milliseconds > 0 && milliseconds <= TIMEOUT_MS_MAX) {
        *to = (int64_t)ceil(milliseconds * 1e6);
        return true;
    }
    wire_cursor_locate(&cursor, &place);
    wire_place_describe(where, &place);
    wire_problem_set(problem, WIRE_E_OUT_OF_RANGE, place.field,
                     "%s is %s; send a number of milliseconds above 0 and up to %d, or "
                     "leave it out",
                     where, text, TIMEOUT_MS_MAX);
    wire_range_print(problem->expected, 0, TIMEOUT_MS_MAX);
    return false;
}

bool wire_read_integer(struct wire_decoder *decoder, const struct wire_field *field,
                       const struct wire_value *value) {
    struct wire_cursor cursor = wire_value_cursor(decoder->source, value);
    struct wire_place place = {.field = value->name};
    size_t *to = wire_field_target(decoder, field);
    struct wire_span text;

    return check_number(decoder->source, value) &&
           wire_integer_read(&cursor, &place, 0, false, to, &text) &&
           ((*to >= field->min && *to <= field->max) ||
            wire_refuse_index_range(&cursor, &place, &text, field->limit,
                                    (int64_t)field->min, field->max));
}

bool wire_read_timeout(struct wire_decoder *decoder, const struct wire_field *field,
                       const struct wire_value *value) {
    if (!wire_read_integer(decoder, field, value))
        return false;
    decoder->request.timeout_ns *= 1000;
    return true;
}
