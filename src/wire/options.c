/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads what the reply has. */
#include "wire/options.h"

#include "wire/json/list.h"
#include "wire/json/object.h"

#define WORDS_BYTES (20 * NUM_RESULTS) /* of all words of need in an error */

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

/* Lists the words that a request can have, those that need a projection first. */
static void list_words(const struct wire_need *need, char ret_text[WORDS_BYTES]) {
    const char *words[NUM_RESULTS];
    size_t count = 0;

    for (int i = 0; i < 2 * NUM_RESULTS; i++) {
        enum result_id id = i % NUM_RESULTS;
        bool projected = (result_table[id].kinds & RESULT_PROJECTED) != 0;
        if (has_word(need, id) && projected == (i < NUM_RESULTS))
            words[count++] = result_table[id].word;
    }
    wire_names_print(ret_text, WORDS_BYTES, words, count, "and");
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
