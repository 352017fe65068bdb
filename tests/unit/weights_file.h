/* SPDX-License-Identifier: Apache-2.0 */
/* weights_file.h: makes safetensors files, good and bad. */
#ifndef ATTND_TESTS_WEIGHTS_FILE_H
#define ATTND_TESTS_WEIGHTS_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a file will hold. Zero-initialised it is empty. */
struct weights_file {
    char header[8192]; /* entries without the outer braces */
    size_t header_size;
    unsigned char data[16384];
    size_t data_size;
};

/* Adds any text to the header, after a comma where it needs one. */
static inline void file_add_text(struct weights_file *file, const char *text) {
    const char *comma = file->header_size > 0 ? "," : "";
    size_t room = sizeof file->header - file->header_size;
    int size = snprintf(file->header + file->header_size, room, "%s%s", comma, text);
    assert_true(size > 0 && (size_t)size < room);
    file->header_size += (size_t)size;
}

/* Adds a tensor; `shape` is JSON. */
static inline void file_add(struct weights_file *file, const char *name,
                            const char *dtype, const char *shape, const void *bytes,
                            size_t size) {
    char text[512];
    snprintf(text, sizeof text,
             "\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", name,
             dtype, shape, file->data_size, file->data_size + size);
    file_add_text(file, text);
    assert_true(file->data_size + size <= sizeof file->data);
    if (size > 0)
        memcpy(file->data + file->data_size, bytes, size);
    file->data_size += size;
}

/* Adds an F32 tensor [rows, columns], or [rows] when columns is 0, whose numbers count up
 * from `first` in steps of 1/8. */
static inline void file_add_f32(struct weights_file *file, const char *name, size_t rows,
                                size_t columns, double first) {
    float values[1024];
    char shape[64];
    size_t count = columns == 0 ? rows : rows * columns;
    assert_true(count <= 1024);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(first + (double)i / 8);
    if (columns == 0)
        snprintf(shape, sizeof shape, "[%zu]", rows);
    else
        snprintf(shape, sizeof shape, "[%zu,%zu]", rows, columns);
    file_add(file, name, "F32", shape, values, count * sizeof values[0]);
}

/* Returns a whole file around any header; malloc'ed to its exact size, so that the
 * address sanitizer sees what is read past it. */
static inline unsigned char *file_make_raw(const char *header, size_t header_size,
                                           const void *data, size_t data_size,
                                           size_t *ret_size) {
    *ret_size = 8 + header_size + data_size;
    unsigned char *bytes = malloc(*ret_size);
    assert_non_null(bytes);
    for (size_t i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(header_size >> 8 * i);
    memcpy(bytes + 8, header, header_size);
    if (data_size > 0)
        memcpy(bytes + 8 + header_size, data, data_size);
    return bytes;
}

/* Returns the finished file; the caller frees it. */
static inline unsigned char *file_make(const struct weights_file *file,
                                       size_t *ret_size) {
    char header[sizeof file->header + 3];
    int size = snprintf(header, sizeof header, "{%s}", file->header);
    return file_make_raw(header, (size_t)size, file->data, file->data_size, ret_size);
}

/* Writes bytes to a new temporary file, whose path the caller unlinks. */
static inline void file_write(const void *bytes, size_t size, char ret_path[64]) {
    snprintf(ret_path, 64, "/tmp/attnd_test_weights_XXXXXX");
    int fd = mkstemp(ret_path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, size), (ssize_t)size);
    close(fd);
}

/* Checks that a text is one line and has these words. */
static inline void assert_text_has(const char *text, const char *words) {
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" does not have \"%s\"", text, words);
    assert_null(strchr(text, '\n'));
}

#endif
