/* SPDX-License-Identifier: Apache-2.0 */
/* header.c: parses the JSON of a header and checks every tensor in it. Each check is a
 * refusal of its own, because the operator or client must know what to correct. */
#include "safetensors/header.h"

#include "base/error.h"
#include "base/size.h"
#include "safetensors/parse.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static attn_status header_no_memory(attn_error *ret_error) {
    return error_set(ret_error, ATTN_E_NOMEM, "not enough memory for the header");
}

attn_status safetensors_find_header(const unsigned char *bytes, uint64_t size, size_t max,
                                    size_t *ret_header_size, attn_error *ret_error) {
    uint64_t header_size;
    _Static_assert(sizeof header_size == SAFETENSORS_SIZE_BYTES, "it is an integer");

    if (size < SAFETENSORS_SIZE_BYTES)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "its size, %" PRIu64
                         " byte%s, is too small for a safetensors file",
                         size, plural_of((size_t)size));
    memcpy(&header_size, bytes, sizeof header_size);

    size_t printed = 0;
    while (printed < sizeof header_size &&
           (isprint(bytes[printed]) || isspace(bytes[printed])))
        printed++;
    if (printed == sizeof header_size)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "it is a text that begins with '%.8s', not safetensors", bytes);
    if (header_size > max)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "header would be %" PRIu64 " bytes long, but at most %zu "
                         "are allowed: not a safetensors file",
                         header_size, max);
    if (header_size > size - SAFETENSORS_SIZE_BYTES)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "header should be %" PRIu64 " byte%s long, "
                         "but the file has only %" PRIu64 " of them",
                         header_size, plural_of((size_t)header_size),
                         size - SAFETENSORS_SIZE_BYTES);
    if (header_size < 2)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "header of %" PRIu64 " byte%s cannot be a JSON object",
                         header_size, plural_of((size_t)header_size));

    *ret_header_size = (size_t)header_size;
    return ATTN_OK;
}

static attn_status check_metadata(json_t *metadata, attn_error *ret_error) {
    if (!json_is_object(metadata))
        return error_set(ret_error, ATTN_E_FORMAT,
                         "__metadata__ is not an object of strings");

    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return error_set(
                ret_error, ATTN_E_FORMAT,
                "'%.80s' in __metadata__ is not a string; write \"2\", not 2", key);
    }
    return ATTN_OK;
}

/* Fills in rank, shape and elements; `dims` has room for the shape. */
static attn_status tensor_parse_shape(struct safetensors_tensor *tensor,
                                      const json_t *shape, size_t *dims,
                                      attn_error *ret_error) {
    _Static_assert(sizeof(size_t) == sizeof(json_int_t), "any dimension fits");
    if (!json_is_array(shape))
        return error_set(ret_error, ATTN_E_FORMAT, "shape is not a list of integers");

    tensor->rank = json_array_size(shape);
    tensor->shape = dims;
    tensor->elements = 1;
    for (size_t i = 0; i < tensor->rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "dimension %zu of shape is not an integer of 0 or more", i);

        dims[i] = (size_t)json_integer_value(dim);
        if (!size_mul(tensor->elements, dims[i], &tensor->elements))
            return error_set(ret_error, ATTN_E_FORMAT,
                             "shape overflows: more elements than can be counted");
    }
    return ATTN_OK;
}

/* Fills in begin and end, and checks them against dtype and elements. */
static attn_status tensor_parse_span(struct safetensors_tensor *tensor,
                                     const json_t *offsets, uint64_t data_size,
                                     attn_error *ret_error) {
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || json_integer_value(begin) < 0 ||
        json_integer_value(end) < 0)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "data_offsets are not two integers of 0 or more");

    tensor->begin = (uint64_t)json_integer_value(begin);
    tensor->end = (uint64_t)json_integer_value(end);
    if (tensor->begin > tensor->end)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "data_offsets [%" PRIu64 ",%" PRIu64 "] end before they begin",
                         tensor->begin, tensor->end);
    if (tensor->end > data_size)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "data_offsets [%" PRIu64 ",%" PRIu64 "] exceed the %" PRIu64
                         " byte%s of data in the file; "
                         "is it cut short?",
                         tensor->begin, tensor->end, data_size,
                         plural_of((size_t)data_size));

    size_t bits;
    if (!size_mul(tensor->elements, tensor->dtype->bits, &bits))
        return error_set(ret_error, ATTN_E_FORMAT,
                         "shape overflows: more bits than can be counted");
    if (bits % 8 != 0)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "%zu element%s of %s cannot fill whole bytes", tensor->elements,
                         plural_of(tensor->elements), tensor->dtype->name);
    if (tensor->end - tensor->begin != bits / 8)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "data_offsets span %" PRIu64 " byte%s, "
                         "but its shape needs %zu of %s",
                         tensor->end - tensor->begin,
                         plural_of((size_t)(tensor->end - tensor->begin)), bits / 8,
                         tensor->dtype->name);
    return ATTN_OK;
}

/* Fills in *tensor from its entry of the header. Errors say what is wrong with it, and
 * leave out its name. */
static attn_status header_parse_tensor(struct safetensors_tensor *tensor,
                                       const json_t *entry, size_t *dims,
                                       uint64_t data_size, attn_error *ret_error) {
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    size_t num_fields = sizeof fields / sizeof fields[0];

    if (!json_is_object(entry))
        return error_set(ret_error, ATTN_E_FORMAT, "its entry is not an object");
    for (size_t i = 0; i < num_fields; i++) {
        if (json_object_get(entry, fields[i]) == NULL)
            return error_set(ret_error, ATTN_E_FORMAT, "%s is missing", fields[i]);
    }
    if (json_object_size(entry) != num_fields)
        return error_set(
            ret_error, ATTN_E_FORMAT,
            "its entry has %zu field%s, but only dtype, shape and data_offsets are "
            "allowed",
            json_object_size(entry), plural_of(json_object_size(entry)));

    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (dtype == NULL)
        return error_set(ret_error, ATTN_E_FORMAT, "dtype is not a string");
    tensor->dtype = dtype_find(dtype);
    if (tensor->dtype == NULL)
        return error_set(ret_error, ATTN_E_FORMAT, "dtype '%.40s' is unknown", dtype);

    attn_status status =
        tensor_parse_shape(tensor, json_object_get(entry, "shape"), dims, ret_error);
    if (status != ATTN_OK)
        return status;
    return tensor_parse_span(tensor, json_object_get(entry, "data_offsets"), data_size,
                             ret_error);
}

/* Fills in header->tensors, in the order of the header. */
static attn_status header_parse_tensors(struct safetensors_header *header,
                                        uint64_t data_size, attn_error *ret_error) {
    const char *name;
    json_t *entry;
    attn_error error;
    size_t count = 0, num_dims = 0;

    json_object_foreach(header->json, name, entry) {
        count++;
        num_dims += json_array_size(json_object_get(entry, "shape"));
    }

    /* one more of each, because calloc(0) may return NULL */
    header->tensors = calloc(count + 1, sizeof *header->tensors);
    header->dims = calloc(num_dims + 1, sizeof *header->dims);
    if (header->tensors == NULL || header->dims == NULL)
        return header_no_memory(ret_error);

    size_t *dims = header->dims;
    json_object_foreach(header->json, name, entry) {
        attn_status status;
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(entry, ret_error);
        } else {
            struct safetensors_tensor *tensor = &header->tensors[header->num_tensors++];
            tensor->name = header->wrong = name;
            status = header_parse_tensor(tensor, entry, dims, data_size, &error);
            if (status != ATTN_OK)
                error_set(ret_error, status, "tensor '%.80s': %s", name, error.text);
            dims += tensor->rank;
        }
        if (status != ATTN_OK)
            return status;
        header->wrong = NULL;
    }
    return ATTN_OK;
}

/* Orders by begin, then by end, so that an empty tensor comes before the one that begins
 * at the same byte. */
static int compare_spans(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int compare_names(const void *a, const void *b) {
    const struct safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Checks that the tensors fill the data without hole or overlap. */
static attn_status check_spans(struct safetensors_header *header, uint64_t data_size,
                               attn_error *ret_error) {
    const char *previous = "";
    uint64_t end = 0;

    qsort(header->tensors, header->num_tensors, sizeof *header->tensors, compare_spans);
    for (size_t i = 0; i < header->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &header->tensors[i];
        header->wrong = tensor->name;
        if (tensor->begin < end)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "tensor '%.80s' overlaps tensor '%.80s': it begins at "
                             "byte %" PRIu64
                             " of the data, but the other ends at %" PRIu64,
                             tensor->name, previous, tensor->begin, end);
        if (tensor->begin > end)
            return error_set(ret_error, ATTN_E_FORMAT,
                             "hole before tensor '%.80s': it begins at "
                             "byte %" PRIu64 " of the data instead of %" PRIu64,
                             tensor->name, tensor->begin, end);
        previous = tensor->name;
        end = tensor->end;
    }
    header->wrong = NULL;

    if (end != data_size)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "%" PRIu64 " byte%s after the last tensor '%.80s', "
                         "which ends at byte %" PRIu64 " of the data",
                         data_size - end, plural_of((size_t)(data_size - end)), previous,
                         end);
    qsort(header->tensors, header->num_tensors, sizeof *header->tensors, compare_names);
    return ATTN_OK;
}

attn_status safetensors_header_parse(const char *text, size_t size, uint64_t data_size,
                                     struct safetensors_header *ret_header,
                                     attn_error *ret_error) {
    json_error_t json_error;
    *ret_header = (struct safetensors_header){0};

    if (text[0] != '{')
        return error_set(ret_error, ATTN_E_FORMAT,
                         "header does not begin with '{': not a safetensors file");
    /* jansson overlooks one that follows a number */
    if (memchr(text, '\0', size) != NULL)
        return error_set(ret_error, ATTN_E_FORMAT, "header has a NUL byte");
    attn_status status = parse_json(text, size, 0, &ret_header->json, &json_error);
    if (status == ATTN_E_NOMEM)
        return header_no_memory(ret_error);
    if (status != ATTN_OK)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "header is not valid JSON: byte %d: %s", json_error.position,
                         json_error_code(&json_error) == json_error_null_character
                             ? "a string may not have \\u0000"
                             : json_error.text);

    status = header_parse_tensors(ret_header, data_size, ret_error);
    return status == ATTN_OK ? check_spans(ret_header, data_size, ret_error) : status;
}

void safetensors_header_deinit(struct safetensors_header *header) {
    json_decref(header->json);
    free(header->tensors);
    free(header->dims);
    *header = (struct safetensors_header){0};
}

static int compare_name(const void *name, const void *tensor) {
    return strcmp(name, ((const struct safetensors_tensor *)tensor)->name);
}

const struct safetensors_tensor *
safetensors_header_find(const struct safetensors_header *header, const char *name) {
    return header->num_tensors == 0 ? NULL
                                    : bsearch(name, header->tensors, header->num_tensors,
                                              sizeof *header->tensors, compare_name);
}

const json_t *safetensors_header_get_metadata(const struct safetensors_header *header) {
    return json_object_get(header->json, "__metadata__");
}
