/* SPDX-License-Identifier: Apache-2.0 */
/* file.c: opens and parses the file of --config. */
#include "config/file.h"

#include "base/error.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file of options, which jansson reads piece by piece. */
struct config_text {
    FILE *file;
    bool has_nul; /* jansson overlooks a NUL byte that follows a number */
    int first;    /* byte that is not a blank; 0: none yet */
    int error;    /* errno of a read that failed, or 0 */
};

/* json_load_callback_t */
static size_t read_some(void *buffer, size_t size, void *data) {
    struct config_text *text = data;
    const unsigned char *bytes = buffer;
    size_t got = fread(buffer, 1, size, text->file);
    for (size_t i = 0; i < got && text->first == 0; i++)
        text->first = isspace(bytes[i]) ? 0 : bytes[i];
    text->has_nul = text->has_nul || memchr(buffer, '\0', got) != NULL;
    if (ferror(text->file))
        text->error = errno;
    return got;
}

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

attn_status config_file_read(const char *path, json_t **ret_root, attn_error *ret_error) {
    struct config_text text = {.error = 0};
    attn_status status = open_text(path, &text.file, ret_error);
    if (status != ATTN_OK)
        return status;

    json_error_t json_error;
    json_t *root =
        json_load_callback(read_some, &text, JSON_REJECT_DUPLICATES, &json_error);
    fclose(text.file);
    if (root != NULL && !text.has_nul && text.error == 0) {
        *ret_root = root;
        return ATTN_OK;
    }

    json_decref(root);
    if (text.error != 0)
        return refuse_to_read(path, text.error, ret_error);
    if (text.has_nul)
        return error_set(ret_error, ATTN_E_FORMAT,
                         "%s: has a NUL byte; write it as JSON in UTF-8", path);
    return error_set(ret_error, ATTN_E_FORMAT, "%s:%d:%d: %s%s", path, json_error.line,
                     json_error.column,
                     json_error_code(&json_error) == json_error_null_character
                         ? "a string may not have \\u0000"
                         : json_error.text,
                     text.first == '{'
                         ? ""
                         : "; --config is JSON, as in {\"listen\": \"127.0.0.1:8080\"}");
}
