/* SPDX-License-Identifier: Apache-2.0 */
/* integer_list.c: reads lists of integers by their axes. */
#include "wire/fields/integer_list.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/pace.h"
#include "wire/json/list.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#define NUMBER_BYTES 32  /* of a printed number */
#define WANTED_BYTES 160 /* of the shapes that an error lists */

bool wire_form_has(const struct wire_form *form, enum wire_axis axis) {
    size_t i = 0;
    while (i < form->rank && form->axes[i] != axis)
        i++;
    return i < form->rank;
}

/* Returns the form of that rank, or NULL. */
static const struct wire_form *find_form(const struct wire_integer_list *list,
                                         size_t rank) {
    for (size_t i = 0; i < list->num_forms; i++) {
        if (list->forms[i].rank == rank)
            return &list->forms[i];
    }
    return NULL;
}

/* --- arrays --- */

/* Sets the shape of an array of that form, and returns its rank. Rows without padding
 * have no axis of sequences. */
static size_t set_shape(const struct wire_integer_list *list,
                        const struct wire_form *form, size_t ret_shape[3]) {
    const struct wire_tensor *rows = list->rows;
    bool joined = rows->unpadded && wire_form_has(form, WIRE_AXIS_ROWS);
    size_t rank = 0;

    for (size_t i = 0; i < form->rank; i++) {
        if (form->axes[i] == WIRE_AXIS_SEQUENCES && !joined)
            ret_shape[rank++] = rows->num_sequences;
        else if (form->axes[i] == WIRE_AXIS_ROWS)
            ret_shape[rank++] = joined ? rows->num_rows : rows->lens[0];
        else if (form->axes[i] == WIRE_AXIS_SECTIONS)
            ret_shape[rank++] = ATTN_AXES;
        else if (form->axes[i] == WIRE_AXIS_PAIR)
            ret_shape[rank++] = 2;
        else if (form->axes[i] == WIRE_AXIS_ANY)
            ret_shape[rank++] = WIRE_SHAPE_ANY;
    }
    return rank;
}

/* Whether a value has the shape; list->any becomes the size that may be any. */
static bool has_shape(struct wire_integer_list *list, const size_t shape[3],
                      size_t rank) {
    const struct wire_value *value = list->value;
    bool fits = value->rank == rank;

    list->any = 1;
    for (size_t i = 0; fits && i < rank; i++) {
        if (shape[i] == WIRE_SHAPE_ANY)
            list->any = value->shape[i];
        fits = shape[i] == WIRE_SHAPE_ANY || shape[i] == value->shape[i];
    }
    return fits;
}

/* Writes a shape of list->form, after ", or " unless it is the first, and returns its
 * size. */
static size_t print_form(const struct wire_integer_list *list, const size_t *shape,
                         size_t rank, char *ret_text, size_t size) {
    const struct wire_form *form = list->form;
    bool shared = list->rows->batched && wire_form_has(form, WIRE_AXIS_ROWS) &&
                  !wire_form_has(form, WIRE_AXIS_SEQUENCES);
    char text[WIRE_SHAPE_PRINT_MAX];

    wire_shape_print(text, shape, rank);
    for (char *any = strstr(text, "null"); any != NULL; any = strstr(text, "null")) {
        *any = 'N';
        memmove(any + 1, any + 4, strlen(any + 4) + 1);
    }
    return (size_t)snprintf(ret_text, size, "%s%s%s", form == list->forms ? "" : ", or ",
                            text, shared ? " for all sequences" : "");
}

/* Refuses a shape that no form has. */
static bool refuse_forms(struct wire_integer_list *list) {
    const struct wire_value *value = list->value;
    size_t shape[3], expected[3], min = SIZE_MAX, max = 0, used = 0;
    char wanted[WANTED_BYTES] = "";

    for (list->form = list->forms; list->form < list->forms + list->num_forms;
         list->form++) {
        size_t rank = set_shape(list, list->form, shape);
        if (rank > 0 && used < sizeof wanted)
            used += print_form(list, shape, rank, wanted + used, sizeof wanted - used);
        if (rank == value->rank)
            memcpy(expected, shape, sizeof expected);
        min = rank < min ? rank : min;
        max = rank > max ? rank : max;
    }
    return wire_refuse_shape(list->source, value, min, max, expected, wanted);
}

/* Finds the form that the shape of a value fits. */
static bool find_shape(struct wire_integer_list *list) {
    size_t shape[3];

    list->levels = list->value->rank;
    for (list->form = list->forms; list->form < list->forms + list->num_forms;
         list->form++) {
        if (has_shape(list, shape, set_shape(list, list->form, shape)))
            return true;
    }
    return refuse_forms(list);
}

/* --- integers of arrays, stored as integers or as floats --- */

static const unsigned char *bytes_of_number(const struct wire_value *value, size_t i) {
    return value->bytes + i * (value->dtype->bits / 8);
}

/* Returns number `i` of an array of floats. */
static double read_array_float(const struct wire_value *value, size_t i) {
    double number;
    float narrow;
    if (value->dtype->bits == 64) {
        memcpy(&number, bytes_of_number(value, i), sizeof number);
        return number;
    }
    memcpy(&narrow, bytes_of_number(value, i), sizeof narrow);
    return (double)narrow;
}

static int64_t read_array_integer(const struct wire_value *value, size_t i) {
    return dtype_read_integer(bytes_of_number(value, i), value->dtype->bits / 8);
}

/* Returns where number `i` is. */
static struct wire_place place_of_number(const struct wire_value *value, size_t i) {
    return wire_place_of(value->name, value->shape, value->rank, i);
}

/* Writes number `i`, and returns its size. */
static size_t print_array_number(const struct wire_value *value, size_t i,
                                 char ret_text[NUMBER_BYTES]) {
    if (value->dtype->to_float == NULL)
        snprintf(ret_text, NUMBER_BYTES, "%" PRId64, read_array_integer(value, i));
    else if (isnan(read_array_float(value, i)))
        snprintf(ret_text, NUMBER_BYTES, "NaN"); /* without a sign */
    else
        snprintf(ret_text, NUMBER_BYTES, "%.17g", read_array_float(value, i));
    return strlen(ret_text);
}

/* Reads integer `i` of an array that was checked. *ret_number is SIZE_MAX when it is
 * larger, or negative. With from_end a negative one is that modulo 2^64, and one that is
 * too large or small is PTRDIFF_MIN. Wrong type, when it is not whole. */
static bool read_integer_at(const struct wire_source *source,
                            const struct wire_value *value, size_t i, bool from_end,
                            size_t *ret_number) {
    if (value->dtype->to_float == NULL) {
        int64_t integer = read_array_integer(value, i);
        *ret_number = integer < 0 && !from_end ? SIZE_MAX : (size_t)integer;
        return true;
    }

    double number = read_array_float(value, i);
    if (!isfinite(number) || number != floor(number)) {
        const struct wire_place place = place_of_number(value, i);
        char text[NUMBER_BYTES];
        size_t digits = print_array_number(value, i, text);
        return wire_refuse_fraction(&place, text, digits, source->problem);
    }
    if (from_end)
        *ret_number =
            fabs(number) < 0x1p63 ? (size_t)(int64_t)number : (size_t)PTRDIFF_MIN;
    else
        *ret_number = number >= 0 && number < 0x1p63 ? (size_t)number : SIZE_MAX;
    return true;
}

static bool allows_integer(struct wire_integer_list *list, size_t i, size_t number) {
    if (list->allow != NULL)
        return list->allow(list, i, number);
    return list->limit.text[0] == '\0' || number <= list->limit.max;
}

/* Refuses integer `i`, which is out of the limit. */
static bool refuse_integer_at(const struct wire_integer_list *list, size_t i) {
    const struct wire_place place = place_of_number(list->value, i);
    char text[NUMBER_BYTES];
    size_t digits = print_array_number(list->value, i, text);
    return wire_refuse_int_range(&place, text, digits, list->limit.text,
                                 list->limit.least, list->limit.max,
                                 list->source->problem);
}

/* Where the next position of three axes goes, of sequences without padding: from [3,
 * rows] to [3, T] of each. */
struct spread {
    size_t sequence, start; /* the current sequence, and its first row */
};

static size_t spread_next(const struct wire_tensor *rows, struct spread *spread,
                          size_t i) {
    size_t axis = i / rows->num_rows, row = i % rows->num_rows;

    if (row == 0)
        *spread = (struct spread){0, 0};
    if (row >= spread->start + rows->lens[spread->sequence]) {
        spread->start += rows->lens[spread->sequence++];
        pace_add(1);
    }
    return ATTN_AXES * spread->start + axis * rows->lens[spread->sequence] + row -
           spread->start;
}

static bool read_array(struct wire_integer_list *list) {
    const struct wire_value *value = list->value;
    const struct wire_source *source = list->source;
    bool spreads = wire_form_has(list->form, WIRE_AXIS_SECTIONS) && list->rows->unpadded;
    struct spread spread = {0, 0};

    for (size_t i = 0; i < value->count; i++) {
        size_t *number =
            &list->numbers[spreads ? spread_next(list->rows, &spread, i) : i];
        pace_add(sizeof(size_t));
        if (!read_integer_at(source, value, i, list->from_end, number))
            return false;
        if (!allows_integer(list, i, *number))
            return list->limit.text[0] != '\0' && refuse_integer_at(list, i);
    }
    list->count = value->count;
    return true;
}

/* --- texts --- */

/* Reads the next integer, at `place`. */
static bool read_next(struct wire_integer_list *list, struct wire_cursor *cursor,
                      struct wire_place *place) {
    size_t i = list->count++, *number = &list->numbers[i];
    struct wire_span text;

    if (!wire_integer_read(cursor, place, list->levels, list->from_end, number, &text))
        return false;
    return allows_integer(list, i, *number) ||
           (list->limit.text[0] != '\0' &&
            wire_refuse_index_range(cursor, place, &text, list->limit.text,
                                    list->limit.least, list->limit.max));
}

/* Returns how many elements the list at `place` must have; SIZE_MAX: any number. */
static size_t find_expected(const struct wire_integer_list *list,
                            const struct wire_place *place) {
    const struct wire_value *value = list->value;
    const struct wire_form *form = list->form;

    if (value->shape != NULL)
        return list->flat ? value->count : value->shape[place->depth];
    switch (form->axes[place->depth]) {
    case WIRE_AXIS_SEQUENCES:
        return list->rows->num_sequences;
    case WIRE_AXIS_ROWS:
        return list->rows
            ->lens[form->axes[0] == WIRE_AXIS_SEQUENCES ? place->index[0] : 0];
    case WIRE_AXIS_SECTIONS:
        return ATTN_AXES;
    case WIRE_AXIS_PAIR:
        return 2;
    case WIRE_AXIS_ANY:
        break;
    }
    return list->any > 0 ? list->any : SIZE_MAX;
}

/* Refuses lists that do not have an element for each sequence. */
static bool refuse_sequences(const struct wire_integer_list *list, size_t expected,
                             size_t got) {
    struct wire_problem *problem = list->source->problem;
    const size_t wanted[] = {expected, WIRE_SHAPE_ANY}, shape[] = {got, WIRE_SHAPE_ANY};

    wire_problem_set(problem, WIRE_E_SHAPE_MISMATCH, list->value->name,
                     "%s has %zu element%s, but queries has %zu sequence%s; send "
                     "one element for each",
                     list->value->name, got, plural_of(got), expected,
                     plural_of(expected));
    wire_shape_print(problem->expected, wanted, list->levels);
    wire_shape_print(problem->got, shape, list->levels);
    return false;
}

/* Refuses a list that was read just now, and has another number of elements. */
static bool refuse_count(const struct wire_integer_list *list, struct wire_cursor *cursor,
                         struct wire_place *place, size_t expected, size_t got) {
    const struct wire_form *form = list->form;
    bool pairs = wire_form_has(form, WIRE_AXIS_PAIR);
    char reason[96];

    if (list->value->shape != NULL) {
        snprintf(reason, sizeof reason, "has %s than %zu in a list",
                 got > expected ? "more" : "fewer", expected);
        return wire_refuse_data(list->source, list->value, reason);
    }
    switch (form->axes[place->depth]) {
    case WIRE_AXIS_SEQUENCES:
        if (!pairs)
            return refuse_sequences(list, expected, got);
        return wire_list_check(cursor, place, expected, got,
                               "send one list for each sequence");
    case WIRE_AXIS_ROWS:
        snprintf(reason, sizeof reason, "%sone for each %s%s", pairs ? "send " : "",
                 list->thing, pairs && place->depth == 0 ? "" : " of its sequence");
        return wire_list_check(cursor, place, expected, got, reason);
    case WIRE_AXIS_SECTIONS:
        return wire_list_check(cursor, place, expected, got,
                               "send a list for each axis: time, row and column");
    case WIRE_AXIS_PAIR:
        return wire_list_check(cursor, place, expected, got, list->pair);
    case WIRE_AXIS_ANY:
        break;
    }
    return wire_list_check(cursor, place, expected, got,
                           "send as many as for the first sequence");
}

/* Reads null in place of a pair, where there is one. */
static bool read_null(struct wire_integer_list *list, struct wire_cursor *cursor) {
    const char *type = wire_cursor_type(cursor);

    if (type == NULL || strcmp(type, "null") != 0)
        return false;
    cursor->at += 4;
    pace_add(4);
    list->numbers[list->count++] = 0;
    list->numbers[list->count++] = 0;
    return true;
}

/* wire_element_reader of all levels: reads the list at `place`, or an integer. */
static bool read_element(struct wire_cursor *cursor, struct wire_place *place,
                         void *context) {
    struct wire_integer_list *list = context;
    size_t count;

    if (place->depth == list->levels)
        return read_next(list, cursor, place);
    bool pair =
        list->value->shape == NULL && list->form->axes[place->depth] == WIRE_AXIS_PAIR;
    if (pair && list->nulls && read_null(list, cursor))
        return true;

    size_t expected = find_expected(list, place);
    if (!wire_list_read(cursor, place, list->levels, expected, read_element, list,
                        &count))
        return false;
    if (expected == SIZE_MAX)
        list->any = count;
    return expected == SIZE_MAX || count == expected ||
           refuse_count(list, cursor, place, expected, count);
}

/* Finds the form by the levels of lists, where nulls may stand for pairs. The first form
 * has the most. */
static bool find_levels_with_nulls(struct wire_integer_list *list,
                                   struct wire_cursor *cursor) {
    struct wire_place place = {.field = list->value->name};
    struct wire_cursor ahead = *cursor;
    size_t levels = wire_cursor_levels(&ahead), most = list->forms[0].rank;

    list->levels =
        levels == 3 || (levels == 2 && wire_cursor_number_end(&ahead) == NULL) ? 3 : 2;
    list->form = find_form(list, list->levels);
    if (list->form != NULL)
        return true;
    wire_cursor_locate(cursor, &place);
    return wire_refuse_levels(&place, most, most, list->levels, cursor->problem);
}

/* Finds the form by the levels of lists. Three axes are not offered to who has fewer
 * levels. Where a list has one level in any request, its elements are refused. */
static bool find_levels(struct wire_integer_list *list, struct wire_cursor *cursor) {
    bool plain = list->num_forms == 1 && list->form->rank == 1 &&
                 !wire_form_has(list->form, WIRE_AXIS_ROWS);
    const struct wire_form *found = find_form(list, wire_value_rank(list->value));
    bool axes = found != NULL && wire_form_has(found, WIRE_AXIS_SECTIONS);
    size_t min = SIZE_MAX, max = 0;

    list->levels = 1;
    for (size_t i = 0; i < list->num_forms; i++) {
        size_t rank = list->forms[i].rank;
        if (wire_form_has(&list->forms[i], WIRE_AXIS_SECTIONS) != axes)
            continue;
        min = rank < min ? rank : min;
        max = rank > max ? rank : max;
    }
    if (!plain && !wire_levels_read(cursor, list->value->name, min, max, &list->levels))
        return false;
    list->form = find_form(list, list->levels);
    return true;
}

/* Reads indices with commas between them, up to the end of the text. */
static bool read_bare(struct wire_integer_list *list, struct wire_cursor *cursor) {
    const struct wire_span *text = &list->value->text;
    struct wire_place place = {.field = list->value->name, .depth = 1};
    int shown = text->end - text->start < 40 ? (int)(text->end - text->start) : 40;
    bool quoted = *text->start == '"', last = false; /* a single one need not be */

    cursor->at += quoted;
    cursor->end -= quoted;
    list->levels = 1;
    while (!last) {
        place.index[0] = list->count;
        wire_cursor_next(cursor);
        if (wire_cursor_number_end(cursor) == NULL)
            break;
        if (!read_next(list, cursor, &place))
            return false;
        char next = wire_cursor_next(cursor);
        last = cursor->at == cursor->end;
        if (!last && next != ',')
            break;
        cursor->at += !last;
    }
    return last ||
           wire_problem_set(cursor->problem, WIRE_E_WRONG_TYPE, place.field,
                            "the parameter %s is %.*s; send a string with indices and "
                            "commas between them, such as \"0,3\", or an input",
                            place.field, shown, text->start);
}

size_t wire_integers_most(const struct wire_value *value, bool nulls) {
    size_t size = (size_t)(value->text.end - value->text.start);

    if (value->shape != NULL)
        return value->count;
    if (value->bare)
        return size / 2 + 1; /* each but the first has a comma */
    /* null and its comma are two integers. */
    return nulls ? 2 * (size / 4 + 1) : value->text.commas + 2;
}

bool wire_integer_list_read(struct wire_integer_list *list) {
    const struct wire_source *source = list->source;
    const struct wire_value *value = list->value;
    struct wire_cursor cursor = wire_value_cursor(source, value);
    struct wire_place place = {.field = value->name};

    list->form = list->forms;
    if (value->shape != NULL) {
        if (!find_shape(list) ||
            (value->bytes != NULL && !wire_array_check(source, value, true)) ||
            (value->bytes == NULL && !wire_data_is_flat(source, value, &list->flat)))
            return false;
        list->levels = list->flat ? 1 : value->rank;
    } else if (!value->bare && !(list->nulls ? find_levels_with_nulls(list, &cursor)
                                             : find_levels(list, &cursor))) {
        return false;
    }

    list->numbers =
        arena_alloc(source->input->arena, wire_integers_most(value, list->nulls),
                    sizeof *list->numbers);
    if (list->numbers == NULL)
        return wire_problem_set_no_memory(source->problem);
    if (value->shape != NULL && value->bytes != NULL)
        return read_array(list);
    return value->bare ? read_bare(list, &cursor) : read_element(&cursor, &place, list);
}

bool wire_integer_list_repeat(struct wire_integer_list *list) {
    size_t sequences = list->rows->num_sequences, bytes = list->count * sizeof(size_t);
    if (sequences == 1)
        return true;
    size_t *all = arena_alloc(list->source->input->arena, sequences, bytes);
    if (all == NULL)
        return wire_problem_set_no_memory(list->source->problem);
    for (size_t b = 0; b < sequences; b++)
        pace_copy(all + b * list->count, list->numbers, bytes);
    list->numbers = all;
    return true;
}
