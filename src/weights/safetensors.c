/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/safetensors.h"

#include "base/error.h"
#include "base/size.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_CHUNK                                                                       \
    ((size_t)16 * 1024) /* bytes read at once; a multiple of any element                 \
                         */

struct safetensors {
    int fd;                      /* -1: `memory` is read */
    const unsigned char *memory; /* [size] */
    uint64_t size;               /* bytes of the whole file */
    uint64_t data_size;          /* bytes past the header */
    json_t *header;              /* owns the names and the metadata */
    struct safetensors_tensor *tensors;
    size_t num_tensors;
    size_t *dims; /* the shapes of all tensors, one after the other */
};

/* Reads `size` bytes at `offset` of the file. */
static attnd_status read_at(const struct safetensors *file, uint64_t offset, size_t size,
                            unsigned char *ret_bytes, attnd_error *ret_error) {
    if (file->fd < 0) {
        memcpy(ret_bytes, file->memory + offset, size);
        return ATTND_OK;
    }
    while (size > 0) {
        ssize_t got = pread(file->fd, ret_bytes, size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(ret_error, ATTND_E_IO, "cannot be read: %s",
                             strerror(errno));
        if (got == 0)
            return error_set(
                ret_error, ATTND_E_IO,
                "ends at byte %" PRIu64 ": it became shorter while being read", offset);
        ret_bytes += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return ATTND_OK;
}

static attnd_status no_memory(attnd_error *ret_error) {
    return error_set(ret_error, ATTND_E_NOMEM, "no memory left for the header");
}

/* Parses the header's JSON into file->header. */
static attnd_status parse_json(struct safetensors *file, const char *text, size_t size,
                               attnd_error *ret_error) {
    if (text[0] != '{')
        return error_set(ret_error, ATTND_E_FORMAT,
                         "header does not begin with '{': not a safetensors file");
    json_error_t json_error;
    file->header = json_loadb(text, size, JSON_REJECT_DUPLICATES, &json_error);
    if (file->header != NULL)
        return ATTND_OK;
    /* jansson leaves the text empty where an allocation of its own failed */
    if (json_error.text[0] == '\0' ||
        json_error_code(&json_error) == json_error_out_of_memory)
        return no_memory(ret_error);
    return error_set(ret_error, ATTND_E_FORMAT, "header is not valid JSON: byte %d: %s",
                     json_error.position, json_error.text);
}

/* Reads and parses the header; sets file->header and file->data_size. */
static attnd_status load_header(struct safetensors *file, attnd_error *ret_error) {
    uint64_t header_size;
    if (file->size < sizeof header_size)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "has %" PRIu64 " bytes, too few for a safetensors file",
                         file->size);
    attnd_status status =
        read_at(file, 0, sizeof header_size, (unsigned char *)&header_size, ret_error);
    if (status != ATTND_OK)
        return status;
    header_size = le64toh(header_size);
    if (header_size > SAFETENSORS_HEADER_MAX)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "header would be %" PRIu64
                         " bytes long, at most %d are allowed: "
                         "not a safetensors file",
                         header_size, SAFETENSORS_HEADER_MAX);
    if (header_size > file->size - sizeof header_size)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "header should be %" PRIu64
                         " bytes long, but the file ends after %" PRIu64 " of them",
                         header_size, file->size - sizeof header_size);
    if (header_size < 2)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "header of %" PRIu64 " bytes cannot be a JSON object",
                         header_size);
    file->data_size = file->size - sizeof header_size - header_size;
    char *text = malloc((size_t)header_size);
    if (text == NULL)
        return no_memory(ret_error);
    status = read_at(file, sizeof header_size, (size_t)header_size, (unsigned char *)text,
                     ret_error);
    if (status == ATTND_OK)
        status = parse_json(file, text, (size_t)header_size, ret_error);
    free(text);
    return status;
}

static attnd_status check_metadata(json_t *metadata, attnd_error *ret_error) {
    if (!json_is_object(metadata))
        return error_set(ret_error, ATTND_E_FORMAT,
                         "__metadata__ is not an object of strings");
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return error_set(
                ret_error, ATTND_E_FORMAT,
                "'%.80s' in __metadata__ is not a string: write \"2\", not 2", key);
    }
    return ATTND_OK;
}

/* Fills in rank, shape and elements; `dims` has room for the shape. */
static attnd_status parse_shape(struct safetensors_tensor *tensor, const json_t *shape,
                                size_t *dims, attnd_error *ret_error) {
    if (!json_is_array(shape))
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': shape is not a list of integers", tensor->name);
    tensor->rank = json_array_size(shape);
    tensor->shape = dims;
    tensor->elements = 1;
    for (size_t i = 0; i < tensor->rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return error_set(
                ret_error, ATTND_E_FORMAT,
                "tensor '%.80s': dimension %zu of shape is not an integer of 0 "
                "or more",
                tensor->name, i);
        if ((uint64_t)json_integer_value(dim) > SIZE_MAX)
            return error_set(ret_error, ATTND_E_FORMAT,
                             "tensor '%.80s': dimension %zu of shape is too large",
                             tensor->name, i);
        dims[i] = (size_t)json_integer_value(dim);
        if (!size_mul(tensor->elements, dims[i], &tensor->elements))
            return error_set(ret_error, ATTND_E_FORMAT,
                             "tensor '%.80s': shape overflows: more elements than can be "
                             "counted",
                             tensor->name);
    }
    return ATTND_OK;
}

/* Fills in begin and end, and checks them against dtype and elements. */
static attnd_status parse_span(struct safetensors_tensor *tensor, const json_t *offsets,
                               uint64_t data_size, attnd_error *ret_error) {
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || json_integer_value(begin) < 0 ||
        json_integer_value(end) < 0)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': data_offsets are not two integers of 0 or more",
                         tensor->name);
    tensor->begin = (uint64_t)json_integer_value(begin);
    tensor->end = (uint64_t)json_integer_value(end);
    if (tensor->begin > tensor->end)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': data_offsets [%" PRIu64 ",%" PRIu64
                         "] end before they begin",
                         tensor->name, tensor->begin, tensor->end);
    if (tensor->end > data_size)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': data_offsets [%" PRIu64 ",%" PRIu64
                         "] exceed the %" PRIu64
                         " bytes of data in the file; is it cut short?",
                         tensor->name, tensor->begin, tensor->end, data_size);
    size_t bits;
    if (!size_mul(tensor->elements, tensor->dtype->bits, &bits))
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': shape overflows: more bits than can be counted",
                         tensor->name);
    if (bits % 8 != 0)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': %zu elements of %s do not fill whole bytes",
                         tensor->name, tensor->elements, tensor->dtype->name);
    if (tensor->end - tensor->begin != bits / 8)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': data_offsets span %" PRIu64
                         " bytes, but its shape takes %zu of %s",
                         tensor->name, tensor->end - tensor->begin, bits / 8,
                         tensor->dtype->name);
    return ATTND_OK;
}

/* Fills in *tensor from its entry of the header. */
static attnd_status parse_tensor(struct safetensors_tensor *tensor, const json_t *entry,
                                 size_t *dims, uint64_t data_size,
                                 attnd_error *ret_error) {
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    if (!json_is_object(entry))
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': its entry is not an object", tensor->name);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (json_object_get(entry, keys[i]) == NULL)
            return error_set(ret_error, ATTND_E_FORMAT, "tensor '%.80s': %s is missing",
                             tensor->name, keys[i]);
    }
    if (json_object_size(entry) != sizeof keys / sizeof keys[0])
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': its entry has %zu keys, but dtype, shape and "
                         "data_offsets are all that is allowed",
                         tensor->name, json_object_size(entry));
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (dtype == NULL)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': dtype is not a string", tensor->name);
    tensor->dtype = dtype_find(dtype);
    if (tensor->dtype == NULL)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "tensor '%.80s': dtype '%.40s' is unknown to safetensors",
                         tensor->name, dtype);
    attnd_status status =
        parse_shape(tensor, json_object_get(entry, "shape"), dims, ret_error);
    if (status != ATTND_OK)
        return status;
    return parse_span(tensor, json_object_get(entry, "data_offsets"), data_size,
                      ret_error);
}

/* Fills in file->tensors, in the order of the header. */
static attnd_status parse_tensors(struct safetensors *file, attnd_error *ret_error) {
    const char *name;
    json_t *entry;
    size_t count = 0, num_dims = 0;
    json_object_foreach(file->header, name, entry) {
        count++;
        num_dims += json_array_size(json_object_get(entry, "shape"));
    }
    /* one more each, because calloc(0) may return NULL */
    file->tensors = calloc(count + 1, sizeof *file->tensors);
    file->dims = calloc(num_dims + 1, sizeof *file->dims);
    if (file->tensors == NULL || file->dims == NULL)
        return no_memory(ret_error);
    size_t *dims = file->dims;
    json_object_foreach(file->header, name, entry) {
        attnd_status status;
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(entry, ret_error);
        } else {
            struct safetensors_tensor *tensor = &file->tensors[file->num_tensors++];
            tensor->name = name;
            status = parse_tensor(tensor, entry, dims, file->data_size, ret_error);
            dims += tensor->rank;
        }
        if (status != ATTND_OK)
            return status;
    }
    return ATTND_OK;
}

/* By begin, then by end, so that an empty tensor comes before what starts at its place.
 */
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
static attnd_status check_spans(struct safetensors *file, attnd_error *ret_error) {
    const char *previous = "";
    uint64_t end = 0;
    qsort(file->tensors, file->num_tensors, sizeof *file->tensors, compare_spans);
    for (size_t i = 0; i < file->num_tensors; i++) {
        const struct safetensors_tensor *tensor = &file->tensors[i];
        if (tensor->begin < end)
            return error_set(
                ret_error, ATTND_E_FORMAT,
                "tensor '%.80s' overlaps tensor '%.80s': it begins at byte %" PRIu64
                " of the data, but the other ends at %" PRIu64,
                tensor->name, previous, tensor->begin, end);
        if (tensor->begin > end)
            return error_set(ret_error, ATTND_E_FORMAT,
                             "hole before tensor '%.80s': it begins at byte %" PRIu64
                             " of the data instead of %" PRIu64,
                             tensor->name, tensor->begin, end);
        previous = tensor->name;
        end = tensor->end;
    }
    if (end != file->data_size)
        return error_set(ret_error, ATTND_E_FORMAT,
                         "%" PRIu64
                         " bytes follow the last tensor '%.80s', which ends at "
                         "byte %" PRIu64 " of the data",
                         file->data_size - end, previous, end);
    qsort(file->tensors, file->num_tensors, sizeof *file->tensors, compare_names);
    return ATTND_OK;
}

/* Finishes an opened source; closes it on failure. */
static attnd_status open_source(struct safetensors *file, struct safetensors **ret_file,
                                attnd_error *ret_error) {
    attnd_status status = load_header(file, ret_error);
    if (status == ATTND_OK)
        status = parse_tensors(file, ret_error);
    if (status == ATTND_OK)
        status = check_spans(file, ret_error);
    if (status != ATTND_OK) {
        safetensors_close(file);
        return status;
    }
    *ret_file = file;
    return ATTND_OK;
}

attnd_status safetensors_open_file(const char *path, struct safetensors **ret_file,
                                   attnd_error *ret_error) {
    struct safetensors *file = calloc(1, sizeof *file);
    if (file == NULL)
        return no_memory(ret_error);
    attnd_status status;
    struct stat stat;
    /* O_NONBLOCK: opening a fifo must not wait for somebody to write to it */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file->fd < 0 || fstat(file->fd, &stat) < 0) {
        status =
            error_set(ret_error, ATTND_E_IO, "cannot be opened: %s", strerror(errno));
        goto fail;
    }
    if (!S_ISREG(stat.st_mode)) {
        status = error_set(ret_error, ATTND_E_IO, "is %s, not a regular file",
                           S_ISDIR(stat.st_mode) ? "a directory" : "a pipe or device");
        goto fail;
    }
    file->size = (uint64_t)stat.st_size;
    return open_source(file, ret_file, ret_error);
fail:
    safetensors_close(file);
    return status;
}

attnd_status safetensors_open_memory(const void *memory, size_t size,
                                     struct safetensors **ret_file,
                                     attnd_error *ret_error) {
    struct safetensors *file = calloc(1, sizeof *file);
    if (file == NULL)
        return no_memory(ret_error);
    file->fd = -1;
    file->memory = memory;
    file->size = size;
    return open_source(file, ret_file, ret_error);
}

void safetensors_close(struct safetensors *file) {
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    json_decref(file->header);
    free(file->tensors);
    free(file->dims);
    free(file);
}

const struct safetensors_tensor *safetensors_get_tensors(const struct safetensors *file,
                                                         size_t *ret_count) {
    *ret_count = file->num_tensors;
    return file->tensors;
}

const char *safetensors_get_metadata(const struct safetensors *file, const char *key) {
    const json_t *metadata = json_object_get(file->header, "__metadata__");
    return json_string_value(json_object_get(metadata, key));
}

/* Refuses the first of `count` values that is not finite; `index` is the first one's in
 * the tensor, `bytes` is what they were converted from. */
static attnd_status check_finite(const struct safetensors_tensor *tensor, size_t index,
                                 const unsigned char *bytes, const float *values,
                                 size_t count, attnd_error *ret_error) {
    for (size_t i = 0; i < count; i++) {
        if (isfinite(values[i]))
            continue;
        uint64_t bits = 0;
        double value = (double)values[i];
        if (tensor->dtype->bits == 64) {
            memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
            bits = le64toh(bits);
            memcpy(&value, &bits, sizeof value);
        }
        return error_set(
            ret_error, ATTND_E_VALUE, "tensor '%.80s': element %zu is %g, %s",
            tensor->name, index + i, value,
            isfinite(value) ? "too large for float32" : "not a finite number");
    }
    return ATTND_OK;
}

attnd_status safetensors_read(const struct safetensors *file,
                              const struct safetensors_tensor *tensor, size_t first,
                              size_t count, float *ret_values, attnd_error *ret_error) {
    if (tensor->dtype->to_float == NULL)
        return error_set(ret_error, ATTND_E_UNSUPPORTED,
                         "tensor '%.80s' has dtype %s; store it as F32, F16, BF16 or F64",
                         tensor->name, tensor->dtype->name);
    unsigned char chunk[READ_CHUNK];
    size_t element_size = tensor->dtype->bits / 8;
    uint64_t data_begin = file->size - file->data_size;
    while (count > 0) {
        size_t n = READ_CHUNK / element_size < count ? READ_CHUNK / element_size : count;
        uint64_t offset = data_begin + tensor->begin + (uint64_t)first * element_size;
        attnd_status status = read_at(file, offset, n * element_size, chunk, ret_error);
        if (status != ATTND_OK)
            return status;
        tensor->dtype->to_float(chunk, n, ret_values);
        status = check_finite(tensor, first, chunk, ret_values, n, ret_error);
        if (status != ATTND_OK)
            return status;
        first += n;
        ret_values += n;
        count -= n;
    }
    return ATTND_OK;
}
