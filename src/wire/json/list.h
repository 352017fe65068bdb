/* SPDX-License-Identifier: Apache-2.0 */
/* list.h: reads lists in the text of a request, element by element.
 *
 * Each function returns false with the cursor's problem set: Malformed JSON, Wrong type,
 * Wrong rank, Empty tensor, Out of range, Out of memory. */
#pragma once

#include "wire/json/cursor.h"

/* Finds how many levels of nested lists the value at the cursor has, along the first
 * elements: from `min` to `max`. Does not move the cursor. */
bool wire_levels_read(const struct wire_cursor *cursor, const char *field, size_t min,
                      size_t max, size_t *ret_levels);

/* Reads the element at `place`, and moves past it. */
typedef bool wire_element_reader(struct wire_cursor *cursor, struct wire_place *place,
                                 void *context);

/* Reads the elements of the list at `place`, which was entered, and moves past its end.
 * Those from index `expected` on are skipped. *ret_count is how many there are in all. */
bool wire_elements_read(struct wire_cursor *cursor, const struct wire_place *place,
                        size_t expected, wire_element_reader *read, void *context,
                        size_t *ret_count);

/* Reads a list as wire_elements_read() does, but enters it first. It must have an
 * element. For the error, `levels` is how many levels of nested lists are expected in
 * all. */
bool wire_list_read(struct wire_cursor *cursor, struct wire_place *place, size_t levels,
                    size_t expected, wire_element_reader *read, void *context,
                    size_t *ret_count);

/* Checks the elements of a list that was read just now: Uneven rows. */
bool wire_list_check(struct wire_cursor *cursor, struct wire_place *place,
                     size_t expected, size_t count, const char *reason);

/* Reads the integer at `place`; `levels` is as above. A point or an exponent is allowed
 * where the number is whole (3.0, 30e-1), since JSON has only one type of numbers.
 * *ret_number is SIZE_MAX when the integer is larger, or negative. With `from_end` it is
 * an index that may count from the end: a negative one is that modulo 2^64, and one that
 * is too large or small PTRDIFF_MIN, which no list has. *ret_text is its text. */
bool wire_integer_read(struct wire_cursor *cursor, struct wire_place *place,
                       size_t levels, bool from_end, size_t *ret_number,
                       struct wire_span *ret_text);

/* Sets the problem and returns false: the integer at `place`, with that text, is not
 * within `min`..`max`. `limit` is the reason for that ("its sequence has 6 keys"). */
bool wire_refuse_index_range(const struct wire_cursor *cursor, struct wire_place *place,
                             const struct wire_span *text, const char *limit, int64_t min,
                             size_t max);

/* The words that a list of numbers may have. */
enum wire_words {
    WIRE_NO_WORDS,
    WIRE_NULLS,   /* null is -INFINITY */
    WIRE_BOOLEANS /* no numbers: true is 0, and false -INFINITY */
};

/* Reads the list of numbers at `place`, an innermost list, into `out`, rounded to
 * float32. `out` has room until `out_end`: for one number more than there are commas. */
bool wire_row_read(struct wire_cursor *cursor, struct wire_place *place,
                   enum wire_words words, float *out, float *out_end, size_t *ret_count);
