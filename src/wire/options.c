/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads options that are one word or one number. */
#include "wire/options.h"

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
