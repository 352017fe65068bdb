/* SPDX-License-Identifier: Apache-2.0 */
#include "config/config.h"

#include "base/error.h"
#include "base/size.h"
#include "config/options.h"

#include <ctype.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ENVIRONMENT_PREFIX "ATTND_"
#define MODEL_SEPARATOR    ";" /* between the texts of one variable */

/* Who said a value; a later one in this list overrules an earlier one. */
enum source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENVIRONMENT, SOURCE_FLAG };

struct reader {
    struct config config;
    enum source *said_by; /* [config_num_options] */
    attn_error *error;
};

static void *value_of(struct config *config, const struct option *option) {
    return (char *)config + option->offset;
}

static bool parse_flag(const char *text, bool *ret_value) {
    static const char *const yes[] = {"true", "1", "on", "yes"};
    static const char *const no[] = {"false", "0", "off", "no"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *ret_value = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* Digits only, then one of the units when `bytes`. */
static bool parse_size(const char *text, bool bytes, size_t *ret_value) {
    static const struct {
        const char *name;
        size_t factor;
    } units[] = {
        {"", 1},
        {"KiB", 1 << 10},
        {"MiB", 1 << 20},
        {"GiB", 1 << 30},
    };
    size_t value = 0;
    if (!isdigit((unsigned char)*text))
        return false;
    for (; isdigit((unsigned char)*text); text++) {
        if (!size_mul(value, 10, &value) ||
            !size_add(value, (size_t)(*text - '0'), &value))
            return false;
    }
    for (size_t i = 0; i < (bytes ? sizeof units / sizeof units[0] : 1); i++) {
        if (strcmp(text, units[i].name) == 0)
            return size_mul(value, units[i].factor, ret_value);
    }
    return false;
}

static bool parse_choice(const char *text, const char *const *choices, int *ret_value) {
    for (int i = 0; choices[i] != NULL; i++) {
        if (strcmp(text, choices[i]) == 0) {
            *ret_value = i;
            return true;
        }
    }
    return false;
}

void config_texts_deinit(struct config_texts *texts) {
    for (size_t i = 0; i < texts->count; i++)
        free(texts->items[i]);
    free(texts->items);
    *texts = (struct config_texts){NULL, 0};
}

static bool texts_add(struct config_texts *texts, const char *text) {
    char **items = realloc(texts->items, (texts->count + 1) * sizeof *items);
    if (items == NULL)
        return false;
    texts->items = items;
    char *copy = strdup(text);
    if (copy == NULL)
        return false;
    items[texts->count++] = copy;
    return true;
}

static bool set_text(char **value, const char *text) {
    char *copy = strdup(text);
    if (copy == NULL)
        return false;
    free(*value);
    *value = copy;
    return true;
}

/* Says that `text` will not do for an option that was called `said_as`. */
static attn_status refuse(struct reader *reader, const struct option *option,
                          const char *said_as, const char *text) {
    switch (option->kind) {
    case OPTION_FLAG:
        return error_set(reader->error, ATTN_E_VALUE, "%s: '%s' is not true or false",
                         said_as, text);
    case OPTION_CHOICE:
        return error_set(reader->error, ATTN_E_VALUE, "%s: '%s' is not one of %s",
                         said_as, text, option->metavar);
    case OPTION_COUNT:
        return error_set(reader->error, ATTN_E_VALUE,
                         "%s: '%s' is not a whole number from %zu to %zu", said_as, text,
                         option->min, option->max);
    case OPTION_BYTES:
        return error_set(
            reader->error, ATTN_E_VALUE,
            "%s: '%s' is not a number of bytes of at least %zu (KiB, MiB or GiB "
            "may follow the number)",
            said_as, text, option->min);
    case OPTION_TEXT:
    case OPTION_TEXTS:
        break;
    }
    return error_set(reader->error, ATTN_E_VALUE, "%s: empty", said_as);
}

/* Gives an option its value; `said_as` is what the operator knows it by. */
static attn_status set(struct reader *reader, const struct option *option,
                       enum source source, const char *said_as, const char *text) {
    enum source *said_by = &reader->said_by[option - config_options];
    void *value = value_of(&reader->config, option);
    bool fits = false, memory = true;
    if (*said_by > source)
        return ATTN_OK;
    switch (option->kind) {
    case OPTION_FLAG:
        fits = parse_flag(text, value);
        break;
    case OPTION_CHOICE:
        fits = parse_choice(text, option->choices, value);
        break;
    case OPTION_COUNT:
    case OPTION_BYTES: {
        size_t size = 0;
        fits = parse_size(text, option->kind == OPTION_BYTES, &size) &&
               size >= option->min && size <= option->max;
        if (fits)
            *(size_t *)value = size;
        break;
    }
    case OPTION_TEXT:
        fits = *text != '\0';
        memory = !fits || set_text(value, text);
        break;
    case OPTION_TEXTS:
        fits = *text != '\0';
        if (*said_by < source)
            config_texts_deinit(value);
        memory = !fits || texts_add(value, text);
        break;
    }
    if (!fits)
        return refuse(reader, option, said_as, text);
    if (!memory)
        return error_set(reader->error, ATTN_E_NOMEM, "%s: out of memory", said_as);
    *said_by = source;
    return ATTN_OK;
}

static attn_status read_defaults(struct reader *reader) {
    for (size_t i = 0; i < config_num_options; i++) {
        const struct option *option = &config_options[i];
        if (option->value == NULL)
            continue;
        attn_status status =
            set(reader, option, SOURCE_DEFAULT, option->name, option->value);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

/* Reads one flag at argv[*at] and moves *at past it and its value. */
static attn_status read_flag(struct reader *reader, int argc, char *const *argv,
                             int *at) {
    const char *flag = argv[*at];
    const char *equals = strchr(flag, '=');
    size_t length = equals != NULL ? (size_t)(equals - flag) : strlen(flag);
    char name[64], said_as[64];
    if (length < 3 || length >= sizeof name || strncmp(flag, "--", 2) != 0)
        return error_set(reader->error, ATTN_E_VALUE,
                         "unknown option '%s': see attnd --help", flag);
    memcpy(said_as, flag, length);
    said_as[length] = '\0';
    memcpy(name, said_as + 2, length - 1);
    const struct option *option = option_find(name, '-');
    if (option == NULL)
        return error_set(reader->error, ATTN_E_VALUE,
                         "unknown option '%s': see attnd --help", said_as);
    ++*at;
    const char *text = equals != NULL ? equals + 1 : NULL;
    if (text == NULL && option->kind == OPTION_FLAG)
        text = "true";
    if (text == NULL && *at < argc)
        text = argv[(*at)++];
    if (text == NULL)
        return error_set(reader->error, ATTN_E_VALUE, "%s: needs a value, %s", said_as,
                         option->metavar);
    return set(reader, option, SOURCE_FLAG, said_as, text);
}

static attn_status read_flags(struct reader *reader, int argc, char *const *argv,
                              struct config_texts *operands) {
    for (int at = 0; at < argc;) {
        if (argv[at][0] == '-' && argv[at][1] != '\0') {
            attn_status status = read_flag(reader, argc, argv, &at);
            if (status != ATTN_OK)
                return status;
        } else if (operands == NULL) {
            return error_set(reader->error, ATTN_E_VALUE,
                             "unexpected argument '%s': see attnd --help", argv[at]);
        } else if (!texts_add(operands, argv[at++])) {
            return error_set(reader->error, ATTN_E_NOMEM, "out of memory");
        }
    }
    return ATTN_OK;
}

/* Several texts in one variable. */
static attn_status set_texts(struct reader *reader, const struct option *option,
                             const char *said_as, const char *text) {
    char *copy = strdup(text), *rest = copy;
    if (copy == NULL)
        return error_set(reader->error, ATTN_E_NOMEM, "out of memory");
    attn_status status = ATTN_OK;
    for (char *item = strtok_r(copy, MODEL_SEPARATOR, &rest);
         item != NULL && status == ATTN_OK; item = strtok_r(NULL, MODEL_SEPARATOR, &rest))
        status = set(reader, option, SOURCE_ENVIRONMENT, said_as, item);
    free(copy);
    return status;
}

static attn_status read_variable(struct reader *reader, const char *variable) {
    const char *equals = strchr(variable, '=');
    size_t prefix = strlen(ENVIRONMENT_PREFIX);
    if (equals == NULL || strncmp(variable, ENVIRONMENT_PREFIX, prefix) != 0)
        return ATTN_OK;
    char said_as[64] = "", name[64] = "";
    size_t length = (size_t)(equals - variable);
    if (length < sizeof said_as) {
        memcpy(said_as, variable, length);
        for (size_t i = prefix; i < length; i++)
            name[i - prefix] = (char)tolower((unsigned char)variable[i]);
    }
    /* An empty variable says nothing: so compose files can pass on what may be unset. And
     * Kubernetes sets ATTND_SERVICE_... and ATTND_PORT... where a service is called
     * attnd. */
    if (equals[1] == '\0' || strncmp(name, "service_", strlen("service_")) == 0 ||
        strcmp(name, "port") == 0 || strncmp(name, "port_", strlen("port_")) == 0)
        return ATTN_OK;
    const struct option *option = option_find(name, '_');
    if (option == NULL || option->command_line_only)
        return error_set(reader->error, ATTN_E_VALUE,
                         "unknown environment variable %.*s: see attnd --help",
                         (int)length, variable);
    if (option->kind == OPTION_TEXTS)
        return set_texts(reader, option, said_as, equals + 1);
    return set(reader, option, SOURCE_ENVIRONMENT, said_as, equals + 1);
}

static attn_status read_environment(struct reader *reader, char *const *environment) {
    for (; *environment != NULL; environment++) {
        attn_status status = read_variable(reader, *environment);
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

/* Gives an option the value of one JSON scalar. */
static attn_status set_json(struct reader *reader, const struct option *option,
                            const char *said_as, const json_t *value) {
    char number[32];
    const char *text = NULL;
    if (json_is_string(value))
        text = json_string_value(value);
    else if (json_is_boolean(value) && option->kind == OPTION_FLAG)
        text = json_is_true(value) ? "true" : "false";
    else if (json_is_integer(value) &&
             (option->kind == OPTION_COUNT || option->kind == OPTION_BYTES)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        text = number;
    }
    if (text == NULL)
        return error_set(reader->error, ATTN_E_VALUE,
                         "%s: wrong type; see attnd --help for what it takes", said_as);
    return set(reader, option, SOURCE_FILE, said_as, text);
}

static attn_status read_file_key(struct reader *reader, const char *key, json_t *value) {
    char said_as[300];
    snprintf(said_as, sizeof said_as, "%s: %s", reader->config.file, key);
    const struct option *option = option_find(key, '_');
    if (option == NULL || option->command_line_only || strcmp(key, "config") == 0)
        return error_set(
            reader->error, ATTN_E_VALUE,
            "%s: unknown option; names are those of attnd --help with '_' for "
            "'-'",
            said_as);
    if (!json_is_array(value) || option->kind != OPTION_TEXTS)
        return set_json(reader, option, said_as, value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        attn_status status = set_json(reader, option, said_as, json_array_get(value, i));
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

static attn_status read_file(struct reader *reader) {
    const char *path = reader->config.file;
    if (path == NULL)
        return ATTN_OK;
    json_error_t json_error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &json_error);
    if (root == NULL && json_error_code(&json_error) == json_error_cannot_open_file)
        return error_set(reader->error, ATTN_E_IO, "--config: cannot read %s", path);
    if (root == NULL)
        return error_set(reader->error, ATTN_E_FORMAT, "%s:%d:%d: %s", path,
                         json_error.line, json_error.column, json_error.text);
    attn_status status = ATTN_OK;
    if (!json_is_object(root))
        status = error_set(reader->error, ATTN_E_FORMAT, "%s: not a JSON object", path);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        if (status == ATTN_OK)
            status = read_file_key(reader, key, value);
    }
    json_decref(root);
    return status;
}

attn_status config_read(int argc, char *const *argv, char *const *environment,
                        struct config *ret_config, struct config_texts *ret_operands,
                        attn_error *ret_error) {
    struct reader reader = {.error = ret_error};
    struct config_texts operands = {NULL, 0};
    attn_status status = error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    reader.said_by = calloc(config_num_options, sizeof *reader.said_by);
    if (reader.said_by != NULL)
        status = read_defaults(&reader);
    /* The highest first: a value that is overruled is not even looked at, and --config is
     * known before the file is read. */
    if (status == ATTN_OK)
        status = read_flags(&reader, argc, argv, ret_operands != NULL ? &operands : NULL);
    if (status == ATTN_OK)
        status = read_environment(&reader, environment);
    if (status == ATTN_OK)
        status = read_file(&reader);
    free(reader.said_by);
    if (status != ATTN_OK) {
        config_texts_deinit(&operands);
        config_deinit(&reader.config);
        return status;
    }
    if (ret_operands != NULL)
        *ret_operands = operands;
    *ret_config = reader.config;
    return ATTN_OK;
}

void config_deinit(struct config *config) {
    for (size_t i = 0; i < config_num_options; i++) {
        void *value = value_of(config, &config_options[i]);
        if (config_options[i].kind == OPTION_TEXT) {
            free(*(char **)value);
            *(char **)value = NULL;
        } else if (config_options[i].kind == OPTION_TEXTS) {
            config_texts_deinit(value);
        }
    }
}
