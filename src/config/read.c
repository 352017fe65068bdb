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
#include <errno.h>
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
    attn_error *error;    /* the first defect; the rest is read all the same */
};

static void *option_value(void *values, const struct option *option) {
    return (char *)values + option->offset;
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

/* Parses digits and, of BYTES, a unit that may follow them. */
static bool parse_size(const char *text, const struct option *option, size_t *ret_value) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", NULL};
    char *end;
    int unit;

    errno = 0;
    size_t value = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)*text) || errno == ERANGE ||
        !parse_choice(end, units, &unit) || (unit > 0 && option->kind != OPTION_BYTES) ||
        !size_mul(value, (size_t)1 << 10 * unit, &value) || value < option->min ||
        value > option->max)
        return false;
    *ret_value = value;
    return true;
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

/* Parses the value `text`. `origin` is where it was written: a flag, a variable, or a
 * file and its field. */
static attn_status parse_value(struct option_reader *reader, const struct option *option,
                               const char *origin, const char *text, void *ret_value) {
    attn_error *error = reader->error;

    switch (option->kind) {
    case OPTION_FLAG:
        if (parse_bool(text, ret_value))
            return ATTN_OK;
        return error_keep(error, ATTN_E_VALUE, "%s: '%s' is not true or false", origin,
                          text);
    case OPTION_CHOICE:
        if (parse_choice(text, option->choices, ret_value))
            return ATTN_OK;
        return error_keep(error, ATTN_E_VALUE, "%s: '%s' is not one of %s", origin, text,
                          option->metavar);
    case OPTION_COUNT:
        if (parse_size(text, option, ret_value))
            return ATTN_OK;
        return error_keep(error, ATTN_E_VALUE,
                          "%s: '%s' is not a whole number from %zu to %zu", origin, text,
                          option->min, option->max);
    case OPTION_BYTES:
        if (parse_size(text, option, ret_value))
            return ATTN_OK;
        return error_keep(error, ATTN_E_VALUE,
                          "%s: '%s' is not a number of bytes of at least %zu "
                          "(KiB, MiB or GiB may follow the number)",
                          origin, text, option->min);
    case OPTION_TEXT:
    case OPTION_TEXTS:
        break;
    }

    if (*text == '\0')
        return error_keep(error, ATTN_E_VALUE, "%s: must not be empty", origin);
    if (option->kind == OPTION_TEXT ? set_text(ret_value, text)
                                    : texts_add(ret_value, text))
        return ATTN_OK;
    return error_keep(error, ATTN_E_NOMEM, "%s: out of memory", origin);
}

/* Sets an option, unless a higher source has set it. `origin` is for the error. */
static void set_value(struct option_reader *reader, const struct option *option,
                      enum source source, const char *origin, const char *text) {
    enum source *value_source = reader->sources;
    void *value = option_value(reader->values, option);

    for (size_t i = 0; option_at(reader->set, i) != option; i++)
        value_source++;
    if (*value_source > source)
        return;
    if (option->kind == OPTION_TEXTS && *value_source < source)
        config_texts_deinit(value);
    if (parse_value(reader, option, origin, text, value) == ATTN_OK)
        *value_source = source;
}

static void read_defaults(struct option_reader *reader) {
    for (size_t i = 0; i < option_count(reader->set); i++) {
        const struct option *option = option_at(reader->set, i);
        if (option->value != NULL)
            set_value(reader, option, SOURCE_DEFAULT, option->name, option->value);
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
static void refuse_unknown_flag(struct option_reader *reader, const char *flag,
                                const char *name) {
    const char *instead = option_find_foreign(name, '-');
    struct nearest nearest = find_nearest(reader->set, name, true);
    if (instead != NULL)
        error_keep(reader->error, ATTN_E_VALUE, "%s is not an option; %s", flag, instead);
    else if (nearest.name != NULL)
        error_keep(reader->error, ATTN_E_VALUE, "unknown option '%s'; did you mean --%s?",
                   flag, nearest.name);
    else
        error_keep(reader->error, ATTN_E_VALUE, "unknown option '%s'; see %s --help",
                   flag, reader->set->program);
}

/* Reads the flag at argv[*at], and advances *at past it and its value. */
static void read_argument(struct option_reader *reader, int argc, char *const *argv,
                          int *at) {
    const char *flag = argv[(*at)++];
    const char *equals = strchr(flag, '=');
    size_t length = equals != NULL ? (size_t)(equals - flag) : strlen(flag);
    char origin[64] = "";

    /* The name, as it is written, is --NAME or -LETTER. */
    if (length < sizeof origin)
        memcpy(origin, flag, length);
    const char *name = strncmp(origin, "--", 2) == 0 ? origin + 2 : "";
    const struct option *option = *name == '\0' && strlen(origin) == 2
                                      ? option_find_letter(reader->set, origin[1])
                                      : option_find(reader->set, name, '-');
    if (option == NULL) {
        refuse_unknown_flag(reader, *origin != '\0' ? origin : flag, name);
        return;
    }

    /* The value follows '=' or is the next argument; a FLAG needs none. */
    const char *text = equals != NULL ? equals + 1 : NULL;
    if (text == NULL && option->kind == OPTION_FLAG)
        text = "true";
    if (text == NULL && *at < argc)
        text = argv[(*at)++];
    if (text == NULL)
        error_keep(reader->error, ATTN_E_VALUE, "%s: needs a value, %s", origin,
                   option->metavar);
    else
        set_value(reader, option, SOURCE_FLAG, origin, text);
}

static void read_operand(struct option_reader *reader, const char *operand) {
    if (reader->command == NULL || !reader->command->accepts_files)
        error_keep(reader->error, ATTN_E_VALUE, "unexpected argument '%s'; see %s --help",
                   operand, reader->set->program);
    else if (!texts_add(&reader->operands, operand))
        error_keep(reader->error, ATTN_E_NOMEM, "out of memory");
}

static void read_arguments(struct option_reader *reader, int argc, char *const *argv) {
    for (int at = 0; at < argc;) {
        if (argv[at][0] == '-' && argv[at][1] != '\0')
            read_argument(reader, argc, argv, &at);
        else
            read_operand(reader, argv[at++]);
    }
}

/* Sets an option from a variable that may hold several texts. */
static void set_variable_texts(struct option_reader *reader, const struct option *option,
                               const char *origin, const char *text) {
    char *copy = strdup(text), *rest = copy;
    if (copy == NULL) {
        error_keep(reader->error, ATTN_E_NOMEM, "out of memory");
        return;
    }
    for (char *item = strtok_r(copy, MODEL_SEPARATOR, &rest); item != NULL;
         item = strtok_r(NULL, MODEL_SEPARATOR, &rest))
        set_value(reader, option, SOURCE_ENVIRONMENT, origin, item);
    free(copy);
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

/* Refuses the variable `origin`, which looks like one of an option; else only notes it.
 * `name` is its name as that of an option. */
static void refuse_unknown_variable(struct option_reader *reader, const char *origin,
                                    const char *name) {
    struct nearest nearest = find_nearest(reader->set, name, false);
    char meant[128];

    if (nearest.name != NULL) {
        help_format_variable(option_find(reader->set, nearest.name, '-'), meant,
                             sizeof meant);
        error_keep(reader->error, ATTN_E_VALUE,
                   "unknown variable '%s'; did you mean %s? Correct it, or unset it",
                   origin, meant);
    } else if (!texts_add(&reader->config->ignored_variables, origin)) {
        error_keep(reader->error, ATTN_E_NOMEM, "out of memory");
    }
}

static void read_variable(struct option_reader *reader, const char *variable) {
    const char *equals = strchr(variable, '=');
    size_t prefix = strlen(OPTION_VARIABLE_PREFIX);

    if (equals == NULL || strncmp(variable, OPTION_VARIABLE_PREFIX, prefix) != 0)
        return;

    /* ATTND_MAX_BODY becomes max_body. The name of a service has 63 bytes at most. */
    char origin[128] = "", name[128] = "";
    size_t length = (size_t)(equals - variable);
    snprintf(origin, sizeof origin, "%.*s", (int)length, variable);
    for (size_t i = prefix; origin[i] != '\0'; i++)
        name[i - prefix] = (char)tolower((unsigned char)origin[i]);

    /* Empty variables are ignored, so that a compose file can pass on what may be
     * unset. */
    if (equals[1] == '\0' || is_service_link(origin, equals + 1))
        return;

    const struct option *option = option_find(reader->set, name, '_');
    if (option == NULL || option->command_line_only)
        refuse_unknown_variable(reader, origin, name);
    else if (option->kind == OPTION_TEXTS)
        set_variable_texts(reader, option, origin, equals + 1);
    else
        set_value(reader, option, SOURCE_ENVIRONMENT, origin, equals + 1);
}

/* Sets an option from a string, number or boolean of the file. */
static void set_json_value(struct option_reader *reader, const struct option *option,
                           const char *origin, const json_t *value) {
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
        error_keep(reader->error, ATTN_E_VALUE,
                   "%s: wrong type; see attnd --help for its values", origin);
    else
        set_value(reader, option, SOURCE_FILE, origin, text);
}

/* Sets the option that the field `name` of the file names. */
static void read_file_option(struct option_reader *reader, const char *name,
                             json_t *value) {
    char origin[300];
    size_t i;
    json_t *item;

    snprintf(origin, sizeof origin, "%s: %s", reader->config->file, name);
    const struct option *option = option_find(reader->set, name, '_');
    if (option_find_foreign(name, '_') != NULL)
        error_keep(reader->error, ATTN_E_VALUE, "%s is not an option; %s", origin,
                   option_find_foreign(name, '_'));
    else if (option == NULL || option->command_line_only || strcmp(name, "config") == 0)
        error_keep(reader->error, ATTN_E_VALUE,
                   "%s: unknown option; use the names in attnd --help, with '_' for '-'",
                   origin);
    else if (!json_is_array(value) || option->kind != OPTION_TEXTS)
        set_json_value(reader, option, origin, value);
    else
        json_array_foreach(value, i, item) {
            set_json_value(reader, option, origin, item);
        }
}

static void read_config_file(struct option_reader *reader) {
    const char *path = reader->config->file;
    if (path == NULL)
        return;

    json_t *root = config_file_read(path, reader->error);
    if (root != NULL && !json_is_object(root))
        error_keep(reader->error, ATTN_E_FORMAT, "%s: not a JSON object", path);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        read_file_option(reader, key, value);
    }
    json_decref(root);
}

/* The highest source first: a value that is overridden is not even checked, and --config
 * is known before the file is read. */
static attn_status read_sources(struct option_reader *reader, int argc, char *const *argv,
                                char *const *environment) {
    reader->sources = calloc(option_count(reader->set), sizeof *reader->sources);
    if (reader->sources == NULL)
        return error_set(reader->error, ATTN_E_NOMEM, "out of memory");

    reader->error->status = ATTN_OK;
    read_defaults(reader);
    read_arguments(reader, argc, argv);
    if (reader->config != NULL && environment != NULL) {
        for (; *environment != NULL; environment++)
            read_variable(reader, *environment);
        read_config_file(reader);
    }
    free(reader->sources);
    return reader->error->status;
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
