/* SPDX-License-Identifier: Apache-2.0 */
/* spec.c: splits the value of --model, or an operand, in place; opens its folder, and
 * names a remedy on failure. */
#include "models/spec.h"

#include "base/error.h"
#include "safetensors/parse.h"
#include "weights/families/tensors.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Parses a whole number of at least 1. */
static bool parse_count(const char *text, size_t *ret_count) {
    bool is_number = text[strspn(text, "0123456789")] == '\0';

    errno = 0;
    unsigned long long count = strtoull(text, NULL, 10);
    if (!is_number || errno != 0 || count == 0 || count > SIZE_MAX)
        return false;
    *ret_count = (size_t)count;
    return true;
}

/* Parses a number that is finite and greater than 0. */
static bool parse_positive(const char *text, double *ret_number) {
    char *end;
    double number = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(number) || number <= 0)
        return false;
    *ret_number = number;
    return true;
}

#define SPEC(name, kind, scope, member)                                                  \
    name, SPEC_##kind, OF_##scope, offsetof(struct model_spec, member)

/* What follows the file. A text is one of `words`, where a key has them. */
static const struct spec_key {
    const char *name;
    enum { SPEC_COUNT, SPEC_POSITIVE, SPEC_TEXT } kind;
    enum { OF_BOTH, OF_FILE, OF_FOLDER } scope; /* files of one layer, folders, or both */
    size_t offset;                              /* of its member in struct model_spec */
    const char *words[2];
} spec_keys[] = {
    {SPEC("num_heads", COUNT, FILE, options.num_heads), {NULL}},
    {SPEC("context_length", COUNT, BOTH, options.context_length), {NULL}},
    {SPEC("causal", TEXT, BOTH, options.causal), {"true", "false"}},
    {SPEC("precision", TEXT, BOTH, precision), {"f32", "bf16"}},
    {SPEC("layout", TEXT, FILE, options.layout), {NULL}},
    {SPEC("prefix", TEXT, BOTH, options.prefix), {NULL}},
    {SPEC("rope_theta", POSITIVE, FILE, options.rope_theta), {NULL}},
    {SPEC("rope_interleaved", TEXT, FILE, options.rope_interleaved), {"true", "false"}},
    {SPEC("eps", POSITIVE, FILE, options.eps), {NULL}},
    {SPEC("q", TEXT, FILE, options.q), {NULL}},
    {SPEC("k", TEXT, FILE, options.k), {NULL}},
    {SPEC("v", TEXT, FILE, options.v), {NULL}},
    {SPEC("qkv", TEXT, FILE, options.qkv), {NULL}},
    {SPEC("o", TEXT, FILE, options.o), {NULL}},
    {SPEC("transposed", TEXT, FILE, options.transposed), {"true", "false"}},
    {SPEC("layers", TEXT, FOLDER, folder.layers), {NULL}},
    {SPEC("layer", TEXT, FOLDER, folder.layer), {NULL}},
    {SPEC("pre_norm", TEXT, FOLDER, folder.pre_norm), {"true", "false"}},
};

/* Sets the option of `pair`, KEY=VALUE, and cuts it at the '='. Errors begin with
 * `option` and `text`, which is parsed. */
static attn_status parse_pair(char *pair, const char *option, const char *text,
                              struct model_spec *spec, attn_error *ret_error) {
    const struct spec_key *key = NULL;
    char *equals = strchr(pair, '=');
    if (equals == NULL || equals[1] == '\0')
        return error_set(ret_error, ATTN_E_VALUE, "%s%s: '%s' is not KEY=VALUE", option,
                         text, pair);

    *equals = '\0';
    for (size_t i = 0; i < sizeof spec_keys / sizeof spec_keys[0]; i++) {
        if (strcmp(spec_keys[i].name, pair) == 0)
            key = &spec_keys[i];
    }
    if (key == NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s%s: unknown key '%s'; the keys are num_heads, causal, "
                         "context_length, layout, prefix, precision, rope_theta, "
                         "rope_interleaved, eps, q, k, v, qkv, o and transposed, and for "
                         "a folder layers, layer and pre_norm",
                         option, text, pair);

    const char *value = equals + 1, *const *words = key->words;
    void *member = (char *)spec + key->offset;
    if (words[0] != NULL && strcmp(value, words[0]) != 0 && strcmp(value, words[1]) != 0)
        return error_set(ret_error, ATTN_E_VALUE, "%s%s: %s '%s' is not %s or %s", option,
                         text, pair, value, words[0], words[1]);
    if (key->kind == SPEC_COUNT && !parse_count(value, member))
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s%s: %s '%s' is not a whole number of at least 1", option,
                         text, pair, value);
    if (key->kind == SPEC_POSITIVE && !parse_positive(value, member))
        return error_set(ret_error, ATTN_E_VALUE,
                         "%s%s: %s '%s' is not a number greater than 0", option, text,
                         pair, value);
    if (key->kind == SPEC_TEXT)
        *(const char **)member = value;
    if (key->scope == OF_FILE && spec->file_key == NULL)
        spec->file_key = key->name;
    if (key->scope == OF_FOLDER && spec->folder_key == NULL)
        spec->folder_key = key->name;
    return ATTN_OK;
}

/* Returns whether `pair` goes on with the list of layers, which the comma between them
 * has cut; then puts the comma back. */
static bool continues_layers(char *pair, const struct model_spec *spec) {
    const char *layers = spec->folder.layers;
    size_t size = layers == NULL ? 0 : strlen(layers);

    if (size == 0 || layers + size + 1 != pair || strchr(pair, '=') != NULL)
        return false;
    pair[-1] = ',';
    return true;
}

/* Cuts NAME=FILE at the '='; without `named` it is the file alone. Returns false when a
 * part is missing. `first` may be NULL. */
static bool parse_path(char *first, bool named, struct model_spec *spec) {
    if (first == NULL)
        return false;
    spec->path = first;
    if (!named)
        return true;

    char *equals = strchr(first, '=');
    if (equals == NULL || equals == first || equals[1] == '\0')
        return false;
    *equals = '\0';
    spec->name = first;
    spec->path = equals + 1;
    return true;
}

attn_status model_spec_parse(const char *text, bool named, struct model_spec *ret_spec,
                             attn_error *ret_error) {
    const char *option = named ? "--model " : "";
    *ret_spec = (struct model_spec){.text = strdup(text)};
    if (ret_spec->text == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "%s%s: out of memory", option, text);

    attn_status status = ATTN_OK;
    char *rest = NULL, *pair;
    if (!parse_path(strtok_r(ret_spec->text, ",", &rest), named, ret_spec))
        status = error_set(ret_error, ATTN_E_VALUE, "%s%s: not %sFILE[,KEY=VALUE]...%s",
                           option, text, named ? "NAME=" : "",
                           named ? "; the name comes first, as in layer=layer.safetensors"
                                 : "");
    while (status == ATTN_OK && (pair = strtok_r(NULL, ",", &rest)) != NULL) {
        if (!continues_layers(pair, ret_spec))
            status = parse_pair(pair, option, text, ret_spec, ret_error);
    }

    if (status != ATTN_OK)
        model_spec_deinit(ret_spec);
    return status;
}

#define NUMBER_BYTES 32 /* of a printed number */

/* Writes the value of a key, of a string without a copy. Returns NULL for lists, objects
 * and null. */
static const char *value_text(const json_t *value, char ret_number[NUMBER_BYTES]) {
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_boolean(value))
        return json_is_true(value) ? "true" : "false";
    if (!json_is_number(value))
        return NULL;
    if (json_is_integer(value))
        snprintf(ret_number, NUMBER_BYTES, "%lld", (long long)json_integer_value(value));
    else
        snprintf(ret_number, NUMBER_BYTES, "%.17g", json_real_value(value));
    return ret_number;
}

/* Copies the path and KEY=VALUE of each key to spec->text, and reads them there. */
static attn_status read_keys(const char *path, json_t *object, struct model_spec *spec,
                             attn_error *ret_error) {
    char number[NUMBER_BYTES], *out;
    size_t size = strlen(path) + 1;
    attn_status status = ATTN_OK;
    const char *key, *text;
    json_t *value;

    json_object_foreach(object, key, value) {
        text = value_text(value, number);
        if (text == NULL && !json_is_null(value))
            return error_set(ret_error, ATTN_E_VALUE,
                             "options: %.80s is a list or an object; give a string, a "
                             "number or a boolean",
                             key);
        size += strlen(key) + (text != NULL ? strlen(text) : 0) + 2;
    }
    spec->text = malloc(size);
    if (spec->text == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "out of memory");
    out = stpcpy(spec->text, path) + 1;
    spec->path = spec->text;
    json_object_foreach(object, key, value) {
        text = value_text(value, number);
        if (text == NULL || status != ATTN_OK)
            continue;
        char *pair = out;
        out = stpcpy(stpcpy(stpcpy(out, key), "="), text) + 1;
        status = parse_pair(pair, "options", "", spec, ret_error);
    }
    return status;
}

attn_status model_spec_read(const char *path, const char *keys,
                            struct model_spec *ret_spec, attn_error *ret_error) {
    const char *text = keys != NULL ? keys : "{}";
    json_t *object = NULL;
    json_error_t error;

    *ret_spec = (struct model_spec){.text = NULL};
    attn_status status = parse_json(text, strlen(text), 0, &object, &error);
    if (status == ATTN_E_NOMEM)
        return error_set(ret_error, status, "out of memory");
    if (status != ATTN_OK || !json_is_object(object))
        status = error_set(ret_error, ATTN_E_FORMAT,
                           "options: %.160s; give a JSON object of the keys of --model",
                           status != ATTN_OK ? error.text : "it is not an object");
    else
        status = read_keys(path, object, ret_spec, ret_error);
    json_decref(object);
    if (status != ATTN_OK)
        model_spec_deinit(ret_spec);
    return status;
}

void model_spec_deinit(struct model_spec *spec) {
    free(spec->text);
    *spec = (struct model_spec){.text = NULL};
}

/* --- folders --- */

#define HUB_NAME_MAX 96 /* bytes of a model's name at Hugging Face, with its owner */

attn_status folder_open_spec(const struct model_spec *spec, struct folder **ret_folder,
                             attn_error *ret_error) {
    struct stat stat_of_path;
    const attn_model_options *options = &spec->options;
    bool exists = stat(spec->path, &stat_of_path) == 0;
    bool is_folder = exists && S_ISDIR(stat_of_path.st_mode);

    *ret_folder = NULL;
    if (exists && !is_folder && spec->folder_key != NULL)
        return error_set(ret_error, ATTN_E_VALUE,
                         "%.160s: %s is for folders, but this is not one; leave it out",
                         spec->path, spec->folder_key);
    if (!is_folder)
        return ATTN_OK;
    if (spec->file_key != NULL)
        return error_set(
            ret_error, ATTN_E_VALUE,
            "%.160s: %s of a folder comes from its config.json; leave it out", spec->path,
            spec->file_key);

    struct folder_options wanted = spec->folder;
    wanted.prefix = options->prefix;
    wanted.causal = options->causal;
    wanted.context_length = options->context_length;
    return folder_open(spec->path, &wanted, ret_folder, ret_error);
}

/* Returns whether a path could be the name of a model at Hugging Face, "gpt2" or
 * "meta-llama/Llama-3.2-1B", and is not the name of a file. */
static bool is_hub_name(const char *path) {
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t owner = strspn(path, allowed), size = strlen(path);
    size_t name = path[owner] == '/' ? strspn(path + owner + 1, allowed) : 0;
    const char *suffix = strrchr(path, '.');
    bool is_file = suffix != NULL && (strcmp(suffix, ".safetensors") == 0 || name == 0);

    return owner > 0 && path[0] != '.' && !is_file && size <= HUB_NAME_MAX &&
           (name == 0 ? size == owner : size == owner + 1 + name);
}

/* Adds words to an error where all of them fit: half a remedy misleads. */
__attribute__((format(printf, 2, 3))) static void add_remedy(attn_error *error,
                                                             const char *format, ...) {
    size_t used = strlen(error->text), room = sizeof error->text - used;
    va_list arguments;

    va_start(arguments, format);
    if (vsnprintf(error->text + used, room, format, arguments) >= (int)room)
        error->text[used] = '\0';
    va_end(arguments);
}

attn_status folder_hint(const char *path, attn_status status, attn_error *error) {
    char folder[PATH_MAX];
    const char *name = strrchr(path, '/');
    size_t size = name == NULL ? 0 : (size_t)(name - path);

    if (status == ATTN_E_IO && access(path, F_OK) != 0 && is_hub_name(path))
        add_remedy(error,
                   "; if that is a model of Hugging Face: hf download %s --local-dir %s",
                   path, name != NULL ? name + 1 : path);
    if (status == ATTN_E_FORMAT &&
        snprintf(folder, sizeof folder, "%.*s", (int)size, path) < (int)sizeof folder &&
        folder_is_at(size > 0 ? folder : "."))
        add_remedy(error, "; %s",
                   folder_tensors_exist(size > 0 ? folder : ".")
                       ? "it is in a folder with config.json: give the folder instead"
                       : "call that model.safetensors, and give the folder");
    return status;
}
