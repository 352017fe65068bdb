/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: lists, element by element, from a request's text.
 *
 * Each function returns false with the cursor's problem set: Malformed JSON, Wrong type,
 * Wrong rank, Empty tensor, Out of range, Out of memory. */
#ifndef ATTND_WIRE_JSON_LIST_H
#define ATTND_WIRE_JSON_LIST_H

#include "wire/json/cursor.h"

/* Enters the list at `place`, which must have an element; `levels` levels of lists are
 * wanted in all. */
bool wire_list_open(struct wire_cursor *cursor, struct wire_place *place, size_t levels);

/* Moves past an element: to the next one, or past the list's end. */
bool wire_list_next(struct wire_cursor *cursor, const struct wire_place *place,
                    bool *ret_more);

/* Reads the whole number at `place`, where `levels` levels of lists are wanted in all.
 * *ret_number is the largest size_t for one that is larger, or negative; *ret_text is how
 * it is written. */
bool wire_uint_read(struct wire_cursor *cursor, struct wire_place *place, size_t levels,
                    size_t *ret_number, struct wire_span *ret_text);

/* Sets the problem and returns false: the whole number at `place`, whose text was read,
 * is not within 0..`most`; `limit` says why it must ("its sequence has 6 keys"). */
bool wire_refuse_uint_range(const struct wire_cursor *cursor, struct wire_place *place,
                            const struct wire_span *text, const char *limit, size_t max);

/* Reads the list of numbers at `place`, the innermost of lists, rounded to float32, into
 * `out`, which has room until `out_end`: for one more than there are commas. */
bool wire_row_read(struct wire_cursor *cursor, struct wire_place *place, float *out,
                   float *out_end, size_t *ret_count);

#endif
