/* SPDX-License-Identifier: Apache-2.0 */
/* read.c: reads options from flags, the environment and the configuration file, and
 * checks each value against the table of options. */
#include "config/read.h"

#include "base/error.h"
#include "base/nearest.h"
#include "base/size.h"
#include "config/file.h"
#include "config/help.h"
#include "config/options.h"

#include <ctype.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_SEPARATOR ";" /* between the texts of one variable */

/* Where a value comes from. A later one in this list overrides an earlier one. */
enum source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_ENVIRONMENT, SOURCE_FLAG };

struct option_reader {
    const struct option_set *set;
    void *values;          /* the struct of the set */
    struct config *config; /* the same, of attnd; NULL: flags are the only source */
    const struct command_info *command; /* NULL: the program has none */
    struct config_texts operands;
    enum source *sources; /* [option_count()], where each value came from */
    attn_status status;   /* of the first defect; the rest is read all the same */
    attn_error *error;    /* for the first defect, then NULL */
};

/* Only the first defect is reported. */
static void keep_first(struct option_reader *reader, attn_status status) {
    if (status != ATTN_OK && reader->status == ATTN_OK) {
        reader->status = status;
        reader->error = NULL;
    }
}

static void *option_value(void *values, const struct option *option) {
    return (char *)values + option->offset;
}

/* Parses digits and, when `bytes`, a unit that may follow them. */
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

    size_t num_units = bytes ? sizeof units / sizeof units[0] : 1;
    for (size_t i = 0; i < num_units; i++) {
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

static bool parse_bool(const char *text, bool *ret_value) {
    static const char *const words[] = {"false", "true", "0",   "1", "off",
                                        "on",    "no",   "yes", NULL};
    int index = 0;
    bool known = parse_choice(text, words, &index);
    *ret_value = known ? index % 2 == 1 : *ret_value;
    return known;
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

/* Refuses the value `text`. `origin` is where it was written: a flag, a variable, or a
 * file and its field. */
static attn_status refuse_value(struct option_reader *reader, const struct option *option,
                                const char *origin, const char *text) {
    switch (option->kind) {
    case OPTION_FLAG:
        return error_set(reader->error, ATTN_E_VALUE, "%s: '%s' is not true or false",
                         origin, text);
    case OPTION_CHOICE:
        return error_set(reader->error, ATTN_E_VALUE, "%s: '%s' is not one of %s", origin,
                         text, option->metavar);
    case OPTION_COUNT:
        return error_set(reader->error, ATTN_E_VALUE,
                         "%s: '%s' is not a whole number from %zu to %zu", origin, text,
                         option->min, option->max);
    case OPTION_BYTES:
        return error_set(reader->error, ATTN_E_VALUE,
                         "%s: '%s' is not a number of bytes of at least %zu "
                         "(KiB, MiB or GiB may follow the number)",
                         origin, text, option->min);
    case OPTION_TEXT:
    case OPTION_TEXTS:
        break;
    }

    return error_set(reader->error, ATTN_E_VALUE, "%s: must not be empty", origin);
}

/* Sets an option, unless a higher source has set it. `origin` is for the error. */
static attn_status set_value(struct option_reader *reader, const struct option *option,
                             enum source source, const char *origin, const char *text) {
    enum source *value_source = reader->sources;
    void *value = option_value(reader->values, option);
    bool fits = false, enough_memory = true;

    for (size_t i = 0; option_at(reader->set, i) != option; i++)
        value_source++;
    if (*value_source > source)
        return ATTN_OK;

    switch (option->kind) {
    case OPTION_FLAG:
        fits = parse_bool(text, value);
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
        enough_memory = !fits || set_text(value, text);
        break;
    case OPTION_TEXTS:
        fits = *text != '\0';
        if (*value_source < source)
            config_texts_deinit(value);
        enough_memory = !fits || texts_add(value, text);
        break;
    }

    if (!fits)
        return refuse_value(reader, option, origin, text);
    if (!enough_memory)
        return error_set(reader->error, ATTN_E_NOMEM, "%s: out of memory", origin);
    *value_source = source;
    return ATTN_OK;
}

static void read_defaults(struct option_reader *reader) {
    for (size_t i = 0; i < option_count(reader->set); i++) {
        const struct option *option = option_at(reader->set, i);
        if (option->value != NULL)
            keep_first(reader, set_value(reader, option, SOURCE_DEFAULT, option->name,
                                         option->value));
    }
}

/* Finds the option that is meant by a flag, or by a variable. */
static struct nearest find_nearest(const struct option_set *set, const char *name,
                                   bool is_flag) {
    struct nearest nearest = {.typed = name};
    for (size_t i = 0; i < option_count(set); i++) {
        if (is_flag || !option_at(set, i)->command_line_only)
            nearest_try(&nearest, option_at(set, i)->name);
    }
    return nearest;
}

/* Refuses the flag `flag`; `name` is its name, or "". */
static attn_status refuse_unknown_flag(struct option_reader *reader, const char *flag,
                                       const char *name) {
    const char *instead = option_find_foreign(name, '-');
    if (instead != NULL)
        return error_set(reader->error, ATTN_E_VALUE, "%s is not an option; %s", flag,
                         instead);
    struct nearest nearest = find_nearest(reader->set, name, true);
    if (nearest.name != NULL)
        return error_set(reader->error, ATTN_E_VALUE,
                         "unknown option '%s'; did you mean --%s?", flag, nearest.name);
    return error_set(reader->error, ATTN_E_VALUE, "unknown option '%s'; see %s --help",
                     flag, reader->set->program);
}

/* Reads the flag at argv[*at], and advances *at past it and its value. */
static attn_status read_argument(struct option_reader *reader, int argc,
                                 char *const *argv, int *at) {
    const char *flag = argv[(*at)++];
    const char *equals = strchr(flag, '=');
    size_t length = equals != NULL ? (size_t)(equals - flag) : strlen(flag);
    const struct option *option = NULL;
    char origin[64] = "";

    /* The name, as it is written, is --NAME or -LETTER. */
    if (length < sizeof origin)
        memcpy(origin, flag, length);
    if (strncmp(origin, "--", 2) == 0)
        option = option_find(reader->set, origin + 2, '-');
    else if (strlen(origin) == 2)
        option = option_find_letter(reader->set, origin[1]);
    if (option == NULL)
        return refuse_unknown_flag(reader, *origin != '\0' ? origin : flag,
                                   strncmp(origin, "--", 2) == 0 ? origin + 2 : "");

    /* The value follows '=' or is the next argument; a FLAG needs none. */
    const char *text = equals != NULL ? equals + 1 : NULL;
    if (text == NULL && option->kind == OPTION_FLAG)
        text = "true";
    if (text == NULL && *at < argc)
        text = argv[(*at)++];
    if (text == NULL)
        return error_set(reader->error, ATTN_E_VALUE, "%s: needs a value, %s", origin,
                         option->metavar);
    return set_value(reader, option, SOURCE_FLAG, origin, text);
}

static attn_status read_operand(struct option_reader *reader, const char *operand) {
    if (reader->command == NULL || !reader->command->accepts_files)
        return error_set(reader->error, ATTN_E_VALUE,
                         "unexpected argument '%s'; see %s --help", operand,
                         reader->set->program);
    if (!texts_add(&reader->operands, operand))
        return error_set(reader->error, ATTN_E_NOMEM, "out of memory");
    return ATTN_OK;
}

static void read_arguments(struct option_reader *reader, int argc, char *const *argv) {
    for (int at = 0; at < argc;) {
        if (argv[at][0] == '-' && argv[at][1] != '\0')
            keep_first(reader, read_argument(reader, argc, argv, &at));
        else
            keep_first(reader, read_operand(reader, argv[at++]));
    }
}

/* Sets an option from a variable that may hold several texts. */
static attn_status set_variable_texts(struct option_reader *reader,
                                      const struct option *option, const char *origin,
                                      const char *text) {
    char *copy = strdup(text), *rest = copy;
    if (copy == NULL)
        return error_set(reader->error, ATTN_E_NOMEM, "out of memory");

    attn_status status = ATTN_OK;
    for (char *item = strtok_r(copy, MODEL_SEPARATOR, &rest);
         item != NULL && status == ATTN_OK; item = strtok_r(NULL, MODEL_SEPARATOR, &rest))
        status = set_value(reader, option, SOURCE_ENVIRONMENT, origin, item);
    free(copy);
    return status;
}

/* Whether Kubernetes sets such a variable for a service whose name begins with "attnd":
 * ATTND_CANARY_SERVICE_HOST, ATTND_PORT, ATTND_PORT_80_TCP_PORT. */
static bool is_service_link(const char *name, const char *value) {
    if (fnmatch("@(*_SERVICE_HOST|*_SERVICE_PORT|*_PORT_*)", name, FNM_EXTMATCH) == 0)
        return true;
    /* A person may set ATTND_PORT=9000; Kubernetes sets tcp://10.0.0.1:80. */
    return fnmatch("*_PORT", name, 0) == 0 &&
           fnmatch("@(tcp|udp|sctp)://*", value, FNM_EXTMATCH) == 0;
}

static attn_status read_variable(struct option_reader *reader, const char *variable) {
    const char *equals = strchr(variable, '=');
    size_t prefix = strlen(OPTION_VARIABLE_PREFIX);

    if (equals == NULL || strncmp(variable, OPTION_VARIABLE_PREFIX, prefix) != 0)
        return ATTN_OK;

    /* ATTND_MAX_BODY becomes max_body. The name of a service has 63 bytes at most. */
    char origin[128] = "", name[128] = "";
    size_t length = (size_t)(equals - variable);
    snprintf(origin, sizeof origin, "%.*s", (int)length, variable);
    for (size_t i = prefix; origin[i] != '\0'; i++)
        name[i - prefix] = (char)tolower((unsigned char)origin[i]);

    /* Empty variables are ignored, so that a compose file can pass on what may be
     * unset. */
    if (equals[1] == '\0' || is_service_link(origin, equals + 1))
        return ATTN_OK;

    const struct option *option = option_find(reader->set, name, '_');
    if (option == NULL || option->command_line_only) {
        struct nearest nearest = find_nearest(reader->set, name, false);
        if (nearest.name != NULL) {
            char meant[128];
            help_format_variable(option_find(reader->set, nearest.name, '-'), meant,
                                 sizeof meant);
            return error_set(reader->error, ATTN_E_VALUE,
                             "unknown variable '%s'; did you mean %s? Correct it, or "
                             "unset it",
                             origin, meant);
        }
        if (texts_add(&reader->config->ignored_variables, origin))
            return ATTN_OK;
        return error_set(reader->error, ATTN_E_NOMEM, "out of memory");
    }
    if (option->kind == OPTION_TEXTS)
        return set_variable_texts(reader, option, origin, equals + 1);
    return set_value(reader, option, SOURCE_ENVIRONMENT, origin, equals + 1);
}

/* Sets an option from a string, number or boolean of the file. */
static attn_status set_json_value(struct option_reader *reader,
                                  const struct option *option, const char *origin,
                                  const json_t *value) {
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
                         "%s: wrong type; see attnd --help for its values", origin);
    return set_value(reader, option, SOURCE_FILE, origin, text);
}

/* Sets the option that the field `name` of the file names. */
static attn_status read_file_option(struct option_reader *reader, const char *name,
                                    json_t *value) {
    char origin[300];

    snprintf(origin, sizeof origin, "%s: %s", reader->config->file, name);
    const struct option *option = option_find(reader->set, name, '_');
    if (option_find_foreign(name, '_') != NULL)
        return error_set(reader->error, ATTN_E_VALUE, "%s is not an option; %s", origin,
                         option_find_foreign(name, '_'));
    if (option == NULL || option->command_line_only || strcmp(name, "config") == 0)
        return error_set(reader->error, ATTN_E_VALUE,
                         "%s: unknown option; use the names in attnd --help, "
                         "with '_' for '-'",
                         origin);

    if (!json_is_array(value) || option->kind != OPTION_TEXTS)
        return set_json_value(reader, option, origin, value);
    for (size_t i = 0; i < json_array_size(value); i++) {
        attn_status status =
            set_json_value(reader, option, origin, json_array_get(value, i));
        if (status != ATTN_OK)
            return status;
    }
    return ATTN_OK;
}

static void read_config_file(struct option_reader *reader) {
    const char *path = reader->config->file;
    json_t *root = NULL;
    if (path == NULL)
        return;

    keep_first(reader, config_file_read(path, &root, reader->error));
    if (root != NULL && !json_is_object(root))
        keep_first(reader, error_set(reader->error, ATTN_E_FORMAT,
                                     "%s: not a JSON object", path));
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
        keep_first(reader, read_file_option(reader, key, value));
    json_decref(root);
}

/* The highest source first: a value that is overridden is not even checked, and --config
 * is known before the file is read. */
static attn_status read_sources(struct option_reader *reader, int argc, char *const *argv,
                                char *const *environment) {
    reader->sources = calloc(option_count(reader->set), sizeof *reader->sources);
    if (reader->sources == NULL)
        return error_set(reader->error, ATTN_E_NOMEM, "out of memory");

    read_defaults(reader);
    read_arguments(reader, argc, argv);
    if (reader->config != NULL && environment != NULL) {
        for (; *environment != NULL; environment++)
            keep_first(reader, read_variable(reader, *environment));
        read_config_file(reader);
    }
    free(reader->sources);
    return reader->status;
}

attn_status config_read(const struct command_info *command, int argc, char *const *argv,
                        char *const *environment, struct config *ret_config,
                        struct config_texts *ret_operands, attn_error *ret_error) {
    struct option_reader reader = {.set = &config_options,
                                   .values = ret_config,
                                   .config = ret_config,
                                   .command = command,
                                   .error = ret_error};

    *ret_config = (struct config){.file = NULL};
    attn_status status = read_sources(&reader, argc, argv, environment);
    if (status == ATTN_OK) {
        *ret_operands = reader.operands;
        return status;
    }
    config_texts_deinit(&reader.operands);
    config_deinit(ret_config);
    return status;
}

attn_status option_read_flags(const struct option_set *set, int argc, char *const *argv,
                              void *ret_values, attn_error *ret_error) {
    struct option_reader reader = {.set = set, .values = ret_values, .error = ret_error};
    attn_status status = read_sources(&reader, argc, argv, NULL);
    if (status != ATTN_OK)
        option_deinit(set, ret_values);
    return status;
}

void option_deinit(const struct option_set *set, void *values) {
    for (size_t i = 0; i < option_count(set); i++) {
        void *value = option_value(values, option_at(set, i));
        if (option_at(set, i)->kind == OPTION_TEXT) {
            free(*(char **)value);
            *(char **)value = NULL;
        } else if (option_at(set, i)->kind == OPTION_TEXTS) {
            config_texts_deinit(value);
        }
    }
}

void config_deinit(struct config *config) {
    option_deinit(&config_options, config);
    config_texts_deinit(&config->ignored_variables);
}
