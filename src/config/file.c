/* SPDX-License-Identifier: Apache-2.0 */
/* file.c: opens and parses the file of --config. */
#include "config/file.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static attn_status refuse_to_read(const char *path, int number, attn_error *ret_error) {
    return error_set(ret_error, ATTN_E_IO, "--config: cannot read %s: %s", path,
                     strerror(number));
}

/* Opens a regular file. Opening a pipe with fopen() would wait for its writer. */
static attn_status open_text(const char *path, FILE **ret_file, attn_error *ret_error) {
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return refuse_to_read(path, errno, ret_error);

    bool known = fstat(fd, &stat) == 0;
    if (known && !S_ISREG(stat.st_mode)) {
        close(fd);
        return error_set(ret_error, ATTN_E_VALUE, "--config: %s is not a regular file",
                         path);
    }
    *ret_file = known ? fdopen(fd, "r") : NULL;
    if (*ret_file != NULL)
        return ATTN_OK;

    attn_status status = refuse_to_read(path, errno, ret_error);
    close(fd);
    return status;
}

static attn_status parse_text(const char *path, const char *text, json_t **ret_root,
                              attn_error *ret_error) {
    json_error_t error;

    *ret_root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (*ret_root != NULL)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_FORMAT, "%s:%d:%d: %s%s", path, error.line,
                     error.column,
                     json_error_code(&error) == json_error_null_character
                         ? "a string may not have \\u0000"
                         : error.text,
                     text[strspn(text, " \t\n\v\f\r")] == '{'
                         ? ""
                         : "; --config is JSON, as in {\"listen\": \"127.0.0.1:8080\"}");
}

attn_status config_file_read(const char *path, json_t **ret_root, attn_error *ret_error) {
    FILE *file = NULL;
    attn_status status = open_text(path, &file, ret_error);
    if (file == NULL)
        return status;

    /* to its end, or to a NUL byte, which jansson overlooks when it follows a number */
    char *text = NULL;
    size_t room = 0;
    ssize_t size = getdelim(&text, &room, '\0', file);
    if (ferror(file) || (size < 0 && !feof(file)))
        status = refuse_to_read(path, errno, ret_error);
    else if (size > 0 && text[size - 1] == '\0')
        status = error_set(ret_error, ATTN_E_FORMAT,
                           "%s: has a NUL byte; write it as JSON in UTF-8", path);
    else
        status = parse_text(path, size > 0 ? text : "", ret_root, ret_error);
    fclose(file);
    free(text);
    return status;
}
