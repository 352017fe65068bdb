/* SPDX-License-Identifier: Apache-2.0 */
/* arrays.c: reads a request of the server, or of a program, whose fields may be arrays in
 * its memory. An array with gaps between its rows is copied, and becomes float32 on the
 * way where it is read as such. */
#include "base/pace.h"
#include "base/size.h"
#include "wire/fields/decoder.h"
#include "wire/names.h"
#include "wire/native/native.h"

#include <stdio.h>

#define NAMES_BYTES        256 /* of the names that an error lists */
#define CONVERTED_TOGETHER 512 /* elements */
#define ELEMENT_BYTES      8   /* at most */

/* --- refusals --- */

/* Refuses a name that is not one of an array. */
static bool refuse_array(const struct wire_source *source, const char *name) {
    char shown[sizeof source->problem->field], known[NAMES_BYTES];
    char advice[NAMES_BYTES + 48];
    const char *remedy = wire_name_remedy(name, wire_is_given(source));

    snprintf(shown, sizeof shown, "%s", name);
    if (wire_field_find(name, source->requests, WIRE_OPTION) != NULL)
        remedy = "put it into the options";
    wire_fields_list(source->requests, WIRE_LISTS | WIRE_LENS, known, sizeof known);
    snprintf(advice, sizeof advice, "remove it, or use one of %s", known);
    return wire_problem_set(source->problem, WIRE_E_UNKNOWN_KEY, shown,
                            "'%.64s' is not an array of a request%s; %s", shown,
                            wire_is_given(source) ? " without a model" : "",
                            remedy != NULL ? remedy : advice);
}

/* --- arrays with gaps --- */

/* How the elements of an array lie: rows of equal steps, at places that the axes before
 * them tell. */
struct rows {
    const attn_array *array;
    size_t outer;   /* axes before the rows */
    size_t count;   /* rows */
    size_t size;    /* elements of a row */
    ptrdiff_t step; /* bytes from one to the next */
};

static struct rows find_strided_rows(const attn_array *array, ptrdiff_t element) {
    struct rows rows = {array, array->rank, 1, 1, element};

    for (; rows.outer > 0; rows.outer--) {
        size_t size = array->shape[rows.outer - 1];
        ptrdiff_t stride = array->strides[rows.outer - 1];
        if (size == 1)
            continue;
        if (rows.size > 1 && stride != rows.step * (ptrdiff_t)rows.size)
            break;
        rows.step = rows.size > 1 ? rows.step : stride;
        rows.size *= size;
    }
    for (size_t axis = 0; axis < rows.outer; axis++)
        rows.count *= array->shape[axis];
    return rows;
}

/* Returns the first element of row `index`. */
static const unsigned char *find_row_start(const struct rows *rows, size_t index) {
    const unsigned char *at = rows->array->data;

    for (size_t axis = rows->outer; axis-- > 0;) {
        size_t size = rows->array->shape[axis];
        at += (ptrdiff_t)(index % size) * rows->array->strides[axis];
        index /= size;
    }
    return at;
}

/* Copies elements that are `step` bytes apart, of 1, 2, 4 or 8 bytes. */
static void copy_elements(unsigned char *to, const unsigned char *from, size_t count,
                          ptrdiff_t step, size_t bytes) {
    if (step == (ptrdiff_t)bytes) {
        memcpy(to, from, count * bytes);
        return;
    }
    for (size_t i = 0; i < count; i++, from += step, to += bytes) {
        if (bytes == 4)
            memcpy(to, from, 4);
        else if (bytes == 2)
            memcpy(to, from, 2);
        else
            memcpy(to, from, bytes);
    }
}

/* Copies all elements, as they are, or as float32 when `converts`. */
static void gather(const struct rows *rows, const struct dtype *dtype, bool converts,
                   unsigned char *to) {
    unsigned char piece[CONVERTED_TOGETHER * ELEMENT_BYTES];
    size_t bytes = dtype->bits / 8;
    float floats[CONVERTED_TOGETHER];

    for (size_t row = 0; row < rows->count; row++) {
        const unsigned char *from = find_row_start(rows, row);
        for (size_t i = 0, count; i < rows->size; i += count) {
            count = size_min(rows->size - i, CONVERTED_TOGETHER);
            pace_add(count);
            copy_elements(converts ? piece : to, from + (ptrdiff_t)i * rows->step, count,
                          rows->step, bytes);
            if (converts) {
                dtype->to_float(piece, count, floats);
                memcpy(to, floats, count * sizeof *floats);
            }
            to += count * (converts ? sizeof *floats : bytes);
        }
    }
}

/* Sets the bytes of a value: those of the array, or of a copy without gaps. */
static bool set_bytes(const struct wire_source *source, const struct wire_field *field,
                      const attn_array *array, struct wire_value *value) {
    const struct wire_input *input = source->input;
    size_t element = value->dtype->bits / 8;

    value->bytes = array->data != NULL ? array->data : (const unsigned char *)"";
    if (array->strides == NULL || value->count == 0 || element == 0 ||
        array->rank > WIRE_PLACE_DEPTH_MAX) /* refused later */
        return true;
    const struct rows rows = find_strided_rows(array, (ptrdiff_t)element);
    if (rows.count == 1 && (rows.size == 1 || rows.step == (ptrdiff_t)element))
        return true;

    bool converts = (field->kind & (WIRE_TENSOR | WIRE_FLOATS | WIRE_MASK)) != 0 &&
                    value->dtype->to_float != NULL &&
                    !wire_value_is_in_place(source, value);
    size_t bytes = size_product(value->count, converts ? sizeof(float) : element);
    if (!input->reserve(input->context, bytes, source->problem))
        return false;
    unsigned char *copy = arena_alloc(input->arena, bytes, 1);
    if (copy == NULL)
        return wire_problem_set_no_memory(source->problem);
    gather(&rows, value->dtype, converts, copy);
    value->bytes = copy;
    if (converts)
        value->dtype = dtype_find("F32");
    return true;
}

/* --- fields --- */

static bool find_array(const attn_array *array, struct wire_source *source) {
    static const size_t no_shape;
    struct wire_problem *problem = source->problem;
    const struct wire_field *field =
        wire_field_find(array->name, source->requests, WIRE_LISTS | WIRE_LENS);
    const struct dtype *dtype = dtype_find(array->type);
    size_t count = 1;

    if (field == NULL)
        return refuse_array(source, array->name);
    if (wire_is_sent(source, field->id))
        return wire_problem_set(problem, WIRE_E_DUPLICATE_KEY, field->name,
                                "'%s' appears twice among the arrays and options; remove "
                                "one of them",
                                field->name);
    if (dtype == NULL)
        return wire_problem_set(problem, WIRE_E_WRONG_DTYPE, field->name,
                                "%s has dtype %.40s, which is none of safetensors; send "
                                "F32, F16, BF16, F64, I64, I32 or BOOL",
                                field->name, array->type);
    for (size_t axis = 0; axis < array->rank; axis++) {
        if (array->shape[axis] == 0)
            count = 0;
        if (!size_mul(count, array->shape[axis], &count))
            return wire_problem_set(problem, WIRE_E_REQUEST_TOO_LARGE, field->name,
                                    "%s has more elements than can be addressed; send "
                                    "fewer or shorter sequences",
                                    field->name);
    }

    struct wire_value *value = wire_source_set(source, field);
    *value = (struct wire_value){.name = field->name,
                                 .shape = array->rank > 0 ? array->shape : &no_shape,
                                 .rank = array->rank,
                                 .count = count,
                                 .dtype = dtype};
    return set_bytes(source, field, array, value);
}

bool wire_arrays_read(const struct wire_input *input, const attn_array *arrays,
                      size_t num_arrays, struct wire_request *ret_request,
                      struct wire_problem *ret_problem) {
    struct wire_source source;
    struct wire_decoder decoder = {.source = &source};

    if (!wire_native_scan(input, &source, ret_problem))
        return false;
    source.has_arrays = arrays != NULL;
    for (size_t i = 0; i < num_arrays; i++) {
        if (!find_array(&arrays[i], &source))
            return false;
    }
    if (!wire_decode(&decoder, 0))
        return false;
    *ret_request = decoder.request;
    return true;
}

bool wire_native_read(const struct wire_input *input, struct wire_request *ret_request,
                      struct wire_problem *ret_problem) {
    return wire_arrays_read(input, NULL, 0, ret_request, ret_problem);
}
