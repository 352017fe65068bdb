/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads what the reply has. */
#include "wire/options.h"

#include "wire/json/list.h"
#include "wire/json/object.h"

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

static const char *const need_words[WIRE_NUM_NEED_WORDS] = {
    [WIRE_NEED_OUTPUTS] = "outputs",   [WIRE_NEED_WEIGHTS] = "weights",
    [WIRE_NEED_HEADS] = "heads",       [WIRE_NEED_LSE] = "lse",
    [WIRE_NEED_SCORES] = "scores",     [WIRE_NEED_SPANS] = "spans",
    [WIRE_NEED_TOP] = "top",           [WIRE_NEED_TARGET] = "target",
    [WIRE_NEED_RECEIVED] = "received", [WIRE_NEED_ENTROPY] = "entropy",
    [WIRE_NEED_BLOCKS] = "blocks",     [WIRE_NEED_CONTRIBUTIONS] = "contributions",
};

/* Returns WIRE_NUM_NEED_WORDS when it is none of the words of the request. */
static size_t find_need_word(const struct wire_need *need, const char *word,
                             size_t size) {
    size_t i = need->given ? WIRE_NEED_OUTPUTS + 1 : WIRE_NEED_OUTPUTS;
    while (i < WIRE_NUM_NEED_WORDS &&
           ((need->given && i == WIRE_NEED_CONTRIBUTIONS) ||
            strlen(need_words[i]) != size || memcmp(need_words[i], word, size) != 0))
        i++;
    return i;
}

bool wire_need_add(struct wire_need *need, const char *word, size_t size,
                   struct wire_problem *ret_problem) {
    size_t i = find_need_word(need, word, size);
    if (i == WIRE_NUM_NEED_WORDS)
        return wire_problem_set(
            ret_problem, WIRE_E_UNKNOWN_OUTPUT, "need",
            "need has '%.*s'; use %sweights, heads, lse, scores, spans, top, target, "
            "received, entropy and blocks%s",
            size < 64 ? (int)size : 64, word,
            need->given ? "" : "outputs, contributions, ",
            need->given ? " (heads are the outputs: nothing projects them)" : "");
    if (need->words[i])
        return wire_problem_set(ret_problem, WIRE_E_DUPLICATE_OUTPUT, "need",
                                "need has '%s' twice; send each word once",
                                need_words[i]);
    need->words[i] = true;
    return true;
}

void wire_need_apply(const struct wire_need *need, attn_request *batch) {
    batch->omit_outputs = !need->words[WIRE_NEED_OUTPUTS];
    batch->need_heads = need->words[WIRE_NEED_HEADS];
    batch->need_contributions = need->words[WIRE_NEED_CONTRIBUTIONS];
    batch->need_lse = need->words[WIRE_NEED_LSE];
    if (need->words[WIRE_NEED_WEIGHTS] && batch->need_weights == ATTN_WEIGHTS_NONE)
        batch->need_weights = ATTN_WEIGHTS_ALL;
    batch->reduce.scores = need->words[WIRE_NEED_SCORES];
    batch->reduce.received = need->words[WIRE_NEED_RECEIVED];
    batch->reduce.entropy = need->words[WIRE_NEED_ENTROPY];
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
