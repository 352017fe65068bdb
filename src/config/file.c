/* SPDX-License-Identifier: Apache-2.0 */
/* file.c: opens and parses the file of --config. */
#include "config/file.h"

#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static json_t *parse_text(const char *path, const char *text, attn_error *error) {
    json_error_t defect;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &defect);

    if (root == NULL)
        error_keep(error, ATTN_E_FORMAT, "%s:%d:%d: %s%s", path, defect.line,
                   defect.column,
                   json_error_code(&defect) == json_error_null_character
                       ? "a string may not have \\u0000"
                       : defect.text,
                   text[strspn(text, " \t\n\v\f\r")] == '{'
                       ? ""
                       : "; --config is JSON, as in {\"listen\": \"127.0.0.1:8080\"}");
    return root;
}

json_t *config_file_read(const char *path, attn_error *error) {
    struct stat found;
    json_t *root = NULL;
    char *text = NULL;
    size_t room = 0;

    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) { /* a pipe would wait */
        error_keep(error, ATTN_E_VALUE, "--config: %s is not a regular file", path);
        return NULL;
    }
    /* to its end, or to a NUL byte, which jansson overlooks when it follows a number */
    FILE *file = fopen(path, "re");
    ssize_t size = file != NULL ? getdelim(&text, &room, '\0', file) : -1;
    if (file == NULL || ferror(file) || (size < 0 && !feof(file)))
        error_keep(error, ATTN_E_IO, "--config: cannot read %s: %s", path,
                   strerror(errno));
    else if (size > 0 && text[size - 1] == '\0')
        error_keep(error, ATTN_E_FORMAT, "%s: has a NUL byte; write it as JSON in UTF-8",
                   path);
    else
        root = parse_text(path, size > 0 ? text : "", error);
    if (file != NULL)
        fclose(file);
    free(text);
    return root;
}
