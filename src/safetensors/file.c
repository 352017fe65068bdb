/* SPDX-License-Identifier: Apache-2.0 */
/* file.c: opens a file or a block of memory, and converts its tensors to float32. */
#include "safetensors/file.h"

#include "base/error.h"
#include "base/pace.h"
#include "base/size.h"
#include "safetensors/digest.h"
#include "safetensors/foreign.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes read at once: a multiple of any element's size; and numbers. */
#define READ_CHUNK ((size_t)16 * 1024)
#define READ_COUNT (READ_CHUNK / 2)
#define SCALE_SAFE 1e30F /* times any number of FP8 it is finite */

struct safetensors {
    int fd;                      /* -1: `memory` is read */
    const unsigned char *memory; /* [size] */
    uint64_t size;               /* bytes of the whole file */
    uint64_t data_begin;         /* bytes up to the end of the header */
    struct safetensors_header header;
    char path[]; /* "" of a file in memory */
};

/* Reads `size` bytes at `offset` of the file. */
static attn_status file_read_bytes(const struct safetensors *file, uint64_t offset,
                                   size_t size, unsigned char *ret_bytes,
                                   attn_error *ret_error) {
    if (file->fd < 0) {
        memcpy(ret_bytes, file->memory + offset, size);
        return ATTN_OK;
    }

    while (size > 0) {
        ssize_t got = pread(file->fd, ret_bytes, size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(ret_error, ATTN_E_IO, "cannot be read: %s", strerror(errno));
        if (got == 0)
            return error_set(
                ret_error, ATTN_E_IO,
                "ends at byte %" PRIu64 ": it became shorter while being read", offset);

        ret_bytes += got;
        offset += (uint64_t)got;
        size -= (size_t)got;
    }
    return ATTN_OK;
}

/* Explains why open() or fstat() of a file at `path` failed with `number`. */
static attn_status refuse_to_open(const char *path, int number, attn_error *ret_error) {
    struct stat stat;

    if (number != EACCES)
        return error_set(ret_error, ATTN_E_IO, "cannot be opened: %s", strerror(number));
    /* lstat() needs no permission on the file, but on the folders before it */
    bool found = lstat(path, &stat) == 0;
    return error_set(ret_error, ATTN_E_IO, "cannot be opened by user %lu: %s; %s",
                     (unsigned long)geteuid(), strerror(number),
                     found ? "make it readable, as in chmod a+r FILE"
                           : "open the folders on its path, as in chmod a+x FOLDER");
}

static attn_status open_no_memory(attn_error *ret_error) {
    return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to open the file");
}

/* Puts a better error in the place of the one about a header when the file is one that
 * another program wrote. */
static attn_status refuse_foreign(const struct safetensors *file, attn_error *ret_error) {
    const char *path = file->fd < 0 ? "FILE" : file->path;
    unsigned char bytes[SAFETENSORS_FOREIGN_MAX];
    size_t size = file->size < sizeof bytes ? (size_t)file->size : sizeof bytes;

    if (file_read_bytes(file, 0, size, bytes, NULL) == ATTN_OK)
        safetensors_find_foreign(bytes, size, path, ret_error);
    return ATTN_E_FORMAT;
}

/* Reads and parses the header; sets file->header and file->data_begin. */
static attn_status file_read_header(struct safetensors *file, attn_error *ret_error) {
    unsigned char prefix[SAFETENSORS_SIZE_BYTES] = {0};
    size_t header_size;
    attn_status status = ATTN_OK;

    if (file->size >= sizeof prefix)
        status = file_read_bytes(file, 0, sizeof prefix, prefix, ret_error);
    if (status == ATTN_OK)
        status = safetensors_find_header(prefix, file->size, SAFETENSORS_HEADER_MAX,
                                         &header_size, ret_error);
    if (status == ATTN_E_FORMAT)
        return refuse_foreign(file, ret_error);
    if (status != ATTN_OK)
        return status;
    file->data_begin = sizeof prefix + header_size;

    char *text = malloc(header_size);
    if (text == NULL)
        return open_no_memory(ret_error);
    status = file_read_bytes(file, sizeof prefix, header_size, (unsigned char *)text,
                             ret_error);
    if (status == ATTN_OK)
        status = safetensors_header_parse(
            text, header_size, file->size - file->data_begin, &file->header, ret_error);
    free(text);
    for (size_t i = 0; status == ATTN_OK && i < file->header.num_tensors; i++)
        file->header.tensors[i].file = file;
    return status;
}

/* Finishes opening a file or a block of memory; closes it on failure, `status` or a later
 * one. */
static attn_status finish_open(struct safetensors *file, attn_status status,
                               struct safetensors **ret_file, attn_error *ret_error) {
    if (status == ATTN_OK)
        status = file_read_header(file, ret_error);
    if (status == ATTN_OK)
        *ret_file = file;
    else
        safetensors_close(file);
    return status;
}

attn_status safetensors_open_file(const char *path, struct safetensors **ret_file,
                                  attn_error *ret_error) {
    struct safetensors *file = calloc(1, sizeof *file + strlen(path) + 1);
    if (file == NULL)
        return open_no_memory(ret_error);
    attn_status status = ATTN_OK;
    struct stat stat;

    memcpy(file->path, path, strlen(path) + 1);
    /* O_NONBLOCK: opening a fifo must not wait for a writer */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file->fd < 0 || fstat(file->fd, &stat) < 0)
        status = refuse_to_open(path, errno, ret_error);
    else if (!S_ISREG(stat.st_mode))
        status = error_set(ret_error, ATTN_E_IO, "is %s, not a regular file",
                           S_ISDIR(stat.st_mode) ? "a directory" : "a pipe or device");
    else
        file->size = (uint64_t)stat.st_size;
    return finish_open(file, status, ret_file, ret_error);
}

attn_status safetensors_open_memory(const void *memory, size_t size,
                                    struct safetensors **ret_file,
                                    attn_error *ret_error) {
    struct safetensors *file = calloc(1, sizeof *file + 1);
    if (file == NULL)
        return open_no_memory(ret_error);
    file->fd = -1;
    file->memory = memory;
    file->size = size;
    return finish_open(file, ATTN_OK, ret_file, ret_error);
}

void safetensors_close(struct safetensors *file) {
    if (file == NULL)
        return;
    if (file->fd >= 0)
        close(file->fd);
    safetensors_header_deinit(&file->header);
    free(file);
}

const char *safetensors_get_path(const struct safetensors *file) {
    return file->path;
}

const struct safetensors_header *safetensors_get_header(const struct safetensors *file) {
    return &file->header;
}

const char *safetensors_get_metadata(const struct safetensors *file, const char *key) {
    const json_t *metadata = safetensors_header_get_metadata(&file->header);
    return json_string_value(json_object_get(metadata, key));
}

/* Refuses the first of `count` values that is not finite. `index` is the index of
 * values[0] in the tensor; `bytes` are what the values were converted from. */
static attn_status check_values_finite(const struct safetensors_tensor *tensor,
                                       size_t index, const unsigned char *bytes,
                                       const float *values, size_t count,
                                       attn_error *ret_error) {
    size_t i = pace_finite_end(values, count);
    if (i == count)
        return ATTN_OK;

    double value = (double)values[i];
    /* a float64 may be finite and only too large for float32 */
    if (tensor->dtype->bits == 64) {
        uint64_t bits;
        memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
        memcpy(&value, &bits, sizeof value);
    }
    return error_set(ret_error, ATTN_E_VALUE, "tensor '%.80s': element %zu is %g, %s",
                     tensor->name, index + i, value,
                     isfinite(value) ? "too large for float32" : "not a finite number");
}

attn_status safetensors_check_dtype(const struct safetensors_tensor *tensor,
                                    attn_error *ret_error) {
    if (tensor->dtype->to_float != NULL)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_UNSUPPORTED,
                     "tensor '%.80s' has dtype %s; store it as F32, F16, BF16 or F64",
                     tensor->name, tensor->dtype->name);
}

/* Reads numbers that a chunk has room for, or those of F32, which need none, without
 * scales. */
static attn_status read_piece(const struct safetensors_tensor *tensor, size_t first,
                              size_t count, float *ret_values, attn_error *ret_error) {
    unsigned char chunk[READ_CHUNK];
    size_t element_size = tensor->dtype->bits / 8;
    const struct safetensors *file = tensor->file;
    uint64_t offset = file->data_begin + tensor->begin + (uint64_t)first * element_size;
    bool are_floats = strcmp(tensor->dtype->name, "F32") == 0; /* they are in place */
    unsigned char *bytes = are_floats ? (unsigned char *)ret_values : chunk;

    attn_status status =
        file_read_bytes(file, offset, count * element_size, bytes, ret_error);
    if (status != ATTN_OK)
        return status;
    digest_note(bytes, count * element_size);
    if (!are_floats)
        tensor->dtype->to_float(bytes, count, ret_values);
    return check_values_finite(tensor, first, bytes, ret_values, count, ret_error);
}

/* Returns whether a scale is negative, or 0 where not all numbers are. */
static bool is_wrong_scale(float scale, const float *values, size_t count) {
    bool wrong = scale < 0;

    for (size_t i = 0; scale == 0 && i < count; i++)
        wrong = wrong || values[i] != 0;
    return wrong;
}

/* Multiplies `count` numbers, of which `first` is the first in the tensor: whole rows, or
 * a part of one. */
static attn_status scale_numbers(const struct safetensors_tensor *tensor, size_t first,
                                 size_t count, float *values, attn_error *ret_error) {
    const struct safetensors_scale *scale = tensor->scale;
    size_t width = tensor->shape[1], blocks = (width - 1) / scale->columns + 1;
    size_t row = first / width, column = first % width;
    size_t last = (first + count - 1) / width, last_column = column + count - 1;
    size_t begin = row / scale->rows * blocks + column / scale->columns;
    size_t end = last / scale->rows * blocks +
                 (last > row ? blocks - 1 : last_column / scale->columns);
    float scales[READ_COUNT] = {0}; /* of rows, which have no more than numbers */
    float largest = 0;

    attn_status status =
        read_piece(&scale->tensor, begin, end + 1 - begin, scales, ret_error);
    if (status != ATTN_OK)
        return status;
    for (size_t i = 0; i < count;) {
        size_t block = row / scale->rows * blocks + column / scale->columns;
        size_t n = scale->columns - column % scale->columns;
        n = size_min(n, size_min(width - column, count - i));

        float factor = scales[block - begin];
        if (is_wrong_scale(factor, values + i, n))
            return error_set(ret_error, ATTN_E_VALUE,
                             "tensor '%.80s': element %zu is %g, but a scale is above 0 "
                             "where numbers of '%.80s' are not 0; copy the file again",
                             scale->tensor.name, block, (double)factor, tensor->name);
        largest = factor > largest ? factor : largest;
        for (size_t k = 0; k < n; k++)
            values[i + k] *= factor;
        i += n;
        row += column + n == width;
        column = column + n == width ? 0 : column + n;
    }

    size_t large = largest > SCALE_SAFE ? pace_finite_end(values, count) : count;
    if (large < count)
        return error_set(ret_error, ATTN_E_VALUE,
                         "tensor '%.80s': element %zu times its scale is too large for "
                         "float32",
                         tensor->name, first + large);
    return ATTN_OK;
}

/* Returns how many of `count` numbers are read at once. With scales these are whole rows,
 * or a part of one, so that there is room for their scales. */
static size_t find_piece(const struct safetensors_tensor *tensor, size_t first,
                         size_t count) {
    size_t most = READ_CHUNK / size_max(tensor->dtype->bits / 8, 2);

    if (tensor->scale != NULL) {
        size_t width = tensor->shape[1], column = first % width;
        most =
            size_min(most, column == 0 && width < READ_COUNT ? READ_COUNT / width * width
                                                             : width - column);
    }
    return size_min(most, count);
}

attn_status safetensors_read(const struct safetensors_tensor *tensor, size_t first,
                             size_t count, float *ret_values, attn_error *ret_error) {
    attn_status status = safetensors_check_dtype(tensor, ret_error);

    for (size_t n; status == ATTN_OK && count > 0; count -= n) {
        n = find_piece(tensor, first, count);
        status = read_piece(tensor, first, n, ret_values, ret_error);
        if (status == ATTN_OK && tensor->scale != NULL)
            status = scale_numbers(tensor, first, n, ret_values, ret_error);
        first += n;
        ret_values += n;
    }
    return status;
}

attn_status safetensors_read_all(const struct safetensors_tensor *tensor,
                                 float *ret_values, attn_error *ret_error) {
    return tensor == NULL
               ? ATTN_OK
               : safetensors_read(tensor, 0, tensor->elements, ret_values, ret_error);
}
