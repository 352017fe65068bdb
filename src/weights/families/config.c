/* SPDX-License-Identifier: Apache-2.0 */
/* config.c: reads JSON files of a folder, and typed values in them. */
#include "weights/families/config.h"

#include "base/error.h"
#include "safetensors/foreign.h"
#include "safetensors/parse.h"
#include "weights/families/wordlist.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_SIZE 64 /* bytes of a key in a family's table, terminator included */

/* Replaces NaN and the infinities, which Python's json writes and jansson does not read,
 * by values of the same size that no number is: where one is wanted, they are refused
 * with their key. */
static void replace_infinities(char *text) {
    static const char *const words[][2] = {
        {"NaN", "{} "}, {"Infinity", "\"inf\"   "}, {"-Infinity", "\"-inf\"   "}};

    for (char *at = text; *(at += strcspn(at, "\"NI-")) != '\0';) {
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
            if (strncmp(at, words[i][0], strlen(words[i][0])) == 0)
                memcpy(at, words[i][1], strlen(words[i][1]));
        }
        if (*at++ != '"')
            continue;
        while (*at != '\0' && *at != '"') /* to the end of a text */
            at += *at == '\\' && at[1] != '\0' ? 2 : 1;
        at += *at == '"';
    }
}

/* Parses the text of a file, and changes it. */
static attn_status parse_config(char *text, size_t size, json_t **ret_json,
                                attn_error *ret_error) {
    json_error_t error;
    const unsigned char *bytes = (const unsigned char *)text;

    if (safetensors_find_foreign(bytes, size, "FILE", ret_error))
        return ATTN_E_FORMAT;
    if (memchr(text, '\0', size) != NULL)
        return error_set(ret_error, ATTN_E_FORMAT, "has a NUL byte; is it a text?");

    json_t *json;
    replace_infinities(text);
    attn_status status = parse_json(text, size, 0, &json, &error);
    if (status == ATTN_E_NOMEM)
        return error_set(ret_error, status, "not enough memory for its JSON");
    if (status != ATTN_OK)
        return error_set(ret_error, ATTN_E_FORMAT, "is not valid JSON: line %d: %.120s",
                         error.line, error.text);
    if (!json_is_object(json)) {
        json_decref(json);
        return error_set(ret_error, ATTN_E_FORMAT, "is not a JSON object");
    }
    *ret_json = json;
    return ATTN_OK;
}

/* Reads a whole file of at most CONFIG_SIZE_MAX bytes, which the caller frees, and puts a
 * NUL byte behind it. Returns NULL with *ret_error set on failure. */
static char *read_text_file(int fd, size_t *ret_size, attn_error *ret_error) {
    struct stat stat;
    size_t done = 0;
    char *text = NULL;

    if (fstat(fd, &stat) != 0)
        error_set(ret_error, ATTN_E_IO, "cannot be read: %s", strerror(errno));
    else if (!S_ISREG(stat.st_mode))
        error_set(ret_error, ATTN_E_IO, "is not a regular file");
    else if (stat.st_size < 0 || (unsigned long long)stat.st_size > CONFIG_SIZE_MAX)
        error_set(ret_error, ATTN_E_FORMAT,
                  "has %lld bytes, but at most %zu are read; is it the right file?",
                  (long long)stat.st_size, CONFIG_SIZE_MAX);
    else if ((text = calloc((size_t)stat.st_size + 1, 1)) == NULL)
        error_set(ret_error, ATTN_E_NOMEM, "not enough memory to read it");

    while (text != NULL && done < (size_t)stat.st_size) {
        ssize_t got = read(fd, text + done, (size_t)stat.st_size - done);
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            error_set(ret_error, ATTN_E_IO, "cannot be read: %s",
                      got < 0 ? strerror(errno) : "it became shorter");
            free(text);
            text = NULL;
        }
    }
    *ret_size = done;
    return text;
}

attn_status config_read_file(const char *path, const char *name, json_t **ret_json,
                             attn_error *ret_error) {
    char file[PATH_MAX];
    size_t size = 0;
    attn_error error = {ATTN_OK, ""};

    if (snprintf(file, sizeof file, "%s/%s", path, name) >= (int)sizeof file)
        return error_set(ret_error, ATTN_E_VALUE, "the path of %s is too long", name);
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) {
        *ret_json = NULL;
        return ATTN_OK;
    }
    if (fd < 0)
        return error_set(ret_error, ATTN_E_IO,
                         "%s: cannot be opened by user %lu: %s; make it readable, as in "
                         "chmod a+r FILE",
                         name, (unsigned long)geteuid(), strerror(errno));

    char *text = read_text_file(fd, &size, &error);
    close(fd);
    attn_status status =
        text != NULL ? parse_config(text, size, ret_json, &error) : error.status;
    free(text);
    if (status != ATTN_OK)
        return error_set(ret_error, status, "%s: %s", name, error.text);
    return ATTN_OK;
}

bool config_has_file(const char *path, const char *name) {
    char file[PATH_MAX];
    return snprintf(file, sizeof file, "%s/%s", path, name) < (int)sizeof file &&
           access(file, F_OK) == 0;
}

/* Looks up a path such as "attn_config.clip_qkv"; NULL where there is none. */
static const json_t *find_in_object(struct attention_keys *asked, const json_t *object,
                                    const char *key) {
    char part[KEY_SIZE];

    for (;;) {
        size_t size = strcspn(key, ".");
        if (!json_is_object(object) || size >= sizeof part)
            return NULL;
        memcpy(part, key, size);
        part[size] = '\0';
        if (key[size] == '\0') {
            attention_keys_note(asked, object, part);
            return json_object_get(object, part);
        }
        object = json_object_get(object, part);
        key += size + 1;
    }
}

static const json_t *find_in_section(const struct config_section *section,
                                     const char *key) {
    const json_t *value = find_in_object(section->asked, section->override, key);
    const json_t *beside = find_in_object(section->asked, section->object, key);
    return value != NULL ? value : beside;
}

/* Returns whether two values of keys that mean the same say the same. */
static bool values_agree(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_is_null(a) || json_is_null(b) || json_equal(a, b);
}

const json_t *config_find(const struct config_section *section, const char *keys,
                          char ret_key[64]) {
    const json_t *found = NULL;
    char key[KEY_SIZE] = "", found_key[KEY_SIZE] = "";

    while (keys != NULL && *keys != '\0' && *keys != '=') {
        size_t size = strcspn(keys, " ,=");
        snprintf(key, sizeof key, "%.*s", (int)size, keys);
        const json_t *value = find_in_section(section, key);
        if (found != NULL && value != NULL && !values_agree(found, value))
            error_keep(section->error, ATTN_E_VALUE,
                       "%s and %s mean the same, but differ; remove one of them",
                       found_key, key);
        if (found_key[0] == '\0' ||
            (value != NULL && (found == NULL || json_is_null(found))))
            memcpy(found_key, key, sizeof key);
        if (value != NULL && (found == NULL || json_is_null(found)))
            found = value;

        keys += size;
        if (*keys == ',' && found != NULL && !json_is_null(found))
            break;
        keys += strspn(keys, " ,");
    }

    if (ret_key != NULL)
        memcpy(ret_key, found_key, sizeof found_key);
    return found;
}

/* Refuses `value` of `key`. */
static void refuse_config_value(const struct config_section *section, const char *key,
                                const json_t *value, const char *expected) {
    char shown[48] = "of another type";

    if (json_is_string(value))
        snprintf(shown, sizeof shown, "'%.40s'", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(shown, sizeof shown, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(shown, sizeof shown, "%g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(shown, sizeof shown, json_is_true(value) ? "true" : "false");
    error_keep(section->error, ATTN_E_VALUE, "%s is %s, but must be %s", key, shown,
               expected);
}

bool config_is_null(const struct config_section *section, const char *keys) {
    return json_is_null(config_find(section, keys, NULL));
}

/* Returns what follows the keys behind a '=', or NULL. */
static const char *find_default(const char *keys) {
    const char *sign = keys != NULL ? strchr(keys, '=') : NULL;
    return sign != NULL ? sign + 1 : NULL;
}

size_t config_default(const char *keys, size_t otherwise) {
    const char *number = find_default(keys);
    return number != NULL ? strtoul(number, NULL, 10) : otherwise;
}

/* Returns a whole number that is at least `least`, which is 0 or 1. */
static size_t get_whole(const struct config_section *section, const char *keys,
                        size_t least, size_t when_absent, size_t when_null) {
    char key[KEY_SIZE];
    const json_t *value = config_find(section, keys, key);

    if (value == NULL || json_is_null(value))
        return value == NULL ? when_absent : when_null;
    double number = json_is_number(value) ? json_number_value(value) : -1;
    if (number >= (double)least && number <= (double)CONFIG_COUNT_MAX &&
        floor(number) == number)
        return (size_t)number;
    refuse_config_value(section, key, value,
                        least == 0 ? "a whole number from 0 to 16777216"
                                   : "a whole number from 1 to 16777216");
    return when_absent;
}

size_t config_get_count(const struct config_section *section, const char *keys,
                        size_t otherwise) {
    return get_whole(section, keys, 1, config_default(keys, otherwise), otherwise);
}

size_t config_get_index(const struct config_section *section, const char *keys) {
    size_t number = config_default(keys, 0);
    return get_whole(section, keys, 0, number, number);
}

double config_get_number(const struct config_section *section, const char *keys,
                         double otherwise) {
    char key[KEY_SIZE];
    const json_t *value = config_find(section, keys, key);

    if (value == NULL || json_is_null(value))
        return otherwise;
    double number = json_number_value(value);
    if (number > 0 && isfinite(number))
        return number;
    refuse_config_value(section, key, value, "a number larger than 0");
    return otherwise;
}

bool config_get_bool(const struct config_section *section, const char *keys) {
    char key[KEY_SIZE];
    const json_t *value = config_find(section, keys, key);

    if (json_is_boolean(value) || json_is_null(value))
        return json_is_true(value);
    if (value != NULL)
        refuse_config_value(section, key, value, "true or false");
    return find_default(keys) != NULL;
}

const char *config_get_text(const struct config_section *section, const char *keys,
                            const char *otherwise) {
    char key[KEY_SIZE];
    const json_t *value = config_find(section, keys, key);

    if (value != NULL && !json_is_null(value) && !json_is_string(value))
        refuse_config_value(section, key, value, "a text in quotes");
    return json_is_string(value) ? json_string_value(value) : otherwise;
}

void config_check_demands(const struct config_section *section, const char *demands,
                          const char *remedy) {
    while (demands != NULL && *demands != '\0') {
        char key[KEY_SIZE], allowed[KEY_SIZE], expected[KEY_SIZE + 48];
        size_t key_size = strcspn(demands, "=");
        snprintf(key, sizeof key, "%.*s", (int)key_size, demands);
        demands += key_size + 1;
        size_t size = strcspn(demands, " ");
        snprintf(allowed, sizeof allowed, "%.*s", (int)size, demands);

        const json_t *value = find_in_section(section, key);
        if (value != NULL && !json_is_null(value) &&
            !wordlist_has_value(allowed, value)) {
            snprintf(expected, sizeof expected, "%s: %s", allowed, remedy);
            refuse_config_value(section, key, value, expected);
        }
        demands += size;
        demands += strspn(demands, " ");
    }
}
