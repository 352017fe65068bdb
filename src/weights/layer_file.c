/* SPDX-License-Identifier: Apache-2.0 */
/* layer_file.c: one table says which entry is which member, for both directions. Numbers
 * are written and read by jansson, since snprintf() and strtod() depend on the locale. */
#include "weights/layer_file.h"

#include "base/error.h"
#include "math/model.h"
#include "safetensors/write.h"
#include "weights/assemble.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX   ((size_t)1 << 24)
#define VALUE_SIZE  32 /* bytes of a value, terminator included */
#define NUM_PARTS   3  /* float32 that add up to a float64 */
#define FREQUENCIES 2  /* lists of them */

enum field_kind {
    FIELD_COUNT,  /* size_t */
    FIELD_NUMBER, /* double, larger than 0 */
    FIELD_FLAG,   /* bool */
    FIELD_CHOICE, /* enum: the index of a word */
    FIELD_WORD    /* const char *: one of the words */
};

static const char *const norm_words[] = {"none", "layer", "rms", NULL};
static const char *const bias_words[] = {"none", "alibi", "buckets", "alibi_rounded",
                                         NULL};
static const char *const kind_words[] = {"self", "cross", NULL};
static const char *const rope_words[] = {"default", "linear",   "dynamic", "llama3",
                                         "yarn",    "longrope", NULL};

#define INFO(kind, member, words)                                                        \
    { #member, kind, offsetof(struct attn_model, info.member), words }
#define ROTATION(kind, member)                                                           \
    { "rope_" #member, kind, offsetof(struct attn_model, rotation.member), NULL }

static const struct field {
    const char *key;
    enum field_kind kind;
    size_t offset;            /* in struct attn_model */
    const char *const *words; /* of a choice or word */
} fields[] = {
    INFO(FIELD_COUNT, query_size, NULL),
    INFO(FIELD_COUNT, key_size, NULL),
    INFO(FIELD_COUNT, value_size, NULL),
    INFO(FIELD_COUNT, out_size, NULL),
    INFO(FIELD_COUNT, num_heads, NULL),
    INFO(FIELD_COUNT, num_kv_heads, NULL),
    INFO(FIELD_COUNT, head_size, NULL),
    INFO(FIELD_FLAG, query_bias, NULL),
    INFO(FIELD_FLAG, key_bias, NULL),
    INFO(FIELD_FLAG, value_bias, NULL),
    INFO(FIELD_FLAG, output_bias, NULL),
    INFO(FIELD_FLAG, causal, NULL),
    INFO(FIELD_COUNT, context_length, NULL),
    INFO(FIELD_WORD, kind, kind_words),
    INFO(FIELD_COUNT, layer, NULL),
    INFO(FIELD_NUMBER, scale, NULL),
    INFO(FIELD_COUNT, window, NULL),
    INFO(FIELD_NUMBER, softcap, NULL),
    INFO(FIELD_NUMBER, clip, NULL),
    INFO(FIELD_FLAG, sinks, NULL),
    INFO(FIELD_CHOICE, bias, bias_words),
    INFO(FIELD_COUNT, bias_distance, NULL),
    INFO(FIELD_CHOICE, head_norm, norm_words),
    INFO(FIELD_FLAG, head_norm_bias, NULL),
    INFO(FIELD_NUMBER, head_norm_eps, NULL),
    INFO(FIELD_COUNT, rope_size, NULL),
    INFO(FIELD_WORD, rope_type, rope_words),
    INFO(FIELD_NUMBER, rope_base, NULL),
    ROTATION(FIELD_NUMBER, magnitude),
    ROTATION(FIELD_NUMBER, factor),
    ROTATION(FIELD_COUNT, max_length),
    INFO(FIELD_CHOICE, pre_norm, norm_words),
    INFO(FIELD_FLAG, pre_norm_applied, NULL),
    INFO(FIELD_FLAG, pre_norm_bias, NULL),
    INFO(FIELD_NUMBER, pre_norm_eps, NULL),
};

enum { NUM_FIELDS = sizeof fields / sizeof fields[0] };

/* --- writing --- */

/* Prints a number; returns false when memory is short. */
static bool print_entry_number(double number, char ret_value[VALUE_SIZE]) {
    json_t *json = json_real(number);
    size_t size = json_dumpb(json, ret_value, VALUE_SIZE - 1, JSON_ENCODE_ANY);

    json_decref(json);
    ret_value[size < VALUE_SIZE ? size : 0] = '\0';
    return ret_value[0] != '\0'; /* 17 digits fit */
}

/* Prints the member of a field; an empty text for one that is 0. Returns false when
 * memory is short. */
static bool print_field(const attn_model *model, const struct field *field,
                        char ret_value[VALUE_SIZE]) {
    const void *member = (const char *)model + field->offset;
    const char *word = NULL;
    size_t count;
    double number;
    unsigned choice;

    ret_value[0] = '\0';
    switch (field->kind) {
    case FIELD_COUNT:
        memcpy(&count, member, sizeof count);
        if (count > 0)
            snprintf(ret_value, VALUE_SIZE, "%zu", count);
        break;
    case FIELD_NUMBER:
        memcpy(&number, member, sizeof number);
        return number > 0 ? print_entry_number(number, ret_value) : true;
    case FIELD_FLAG:
        word = *(const bool *)member ? "true" : NULL;
        break;
    case FIELD_CHOICE:
        memcpy(&choice, member, sizeof choice);
        word = choice > 0 ? field->words[choice] : NULL;
        break;
    case FIELD_WORD:
        memcpy(&word, member, sizeof word);
        break;
    }
    if (word != NULL)
        snprintf(ret_value, VALUE_SIZE, "%s", word);
    return true;
}

/* Splits float64 into rows of float32 whose sum they are. */
static void split_frequencies(const double *frequencies, size_t count, float *ret_parts) {
    for (size_t a = 0; a < count; a++) {
        double rest = frequencies[a];
        for (size_t part = 0; part < NUM_PARTS; part++) {
            ret_parts[part * count + a] = (float)rest;
            rest -= (double)(float)rest;
        }
    }
}

static const char *const frequency_names[FREQUENCIES] = {"rope_frequencies",
                                                         "rope_long_frequencies"};

attn_status layer_file_write(const attn_model *model, const char *path,
                             attn_error *ret_error) {
    struct safetensors_source tensors[MODEL_ARRAYS + FREQUENCIES];
    struct safetensors_text entries[NUM_FIELDS + 1] = {{"layout", LAYER_FILE_LAYOUT}};
    struct model_array arrays[MODEL_ARRAYS];
    char values[NUM_FIELDS][VALUE_SIZE];
    attn_model copy = *model; /* model_list_arrays() points into it */
    size_t num_tensors = 0, num_entries = 1, pairs = model->info.rope_size / 2;
    const double *const lists[FREQUENCIES] = {model->rotation.frequencies,
                                              model->rotation.long_frequencies};

    for (size_t i = 0; i < NUM_FIELDS; i++) {
        if (!print_field(model, &fields[i], values[i]))
            return error_set(ret_error, ATTN_E_NOMEM, "not enough memory for its sizes");
        if (values[i][0] != '\0')
            entries[num_entries++] = (struct safetensors_text){fields[i].key, values[i]};
    }
    model_list_arrays(&copy, arrays);
    for (size_t i = 0; i < MODEL_ARRAYS; i++) {
        size_t columns = arrays[i].columns > 1 ? arrays[i].columns : 0;
        if (arrays[i].present)
            tensors[num_tensors++] = (struct safetensors_source){
                arrays[i].name, *arrays[i].pointer, arrays[i].rows, columns};
    }

    float *parts = calloc((size_t)FREQUENCIES * NUM_PARTS * (pairs + 1), sizeof *parts);
    if (parts == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory for its rotation");
    for (size_t i = 0; i < FREQUENCIES && pairs > 0; i++) {
        float *rows = parts + i * NUM_PARTS * pairs;
        if (lists[i] == NULL)
            continue;
        split_frequencies(lists[i], pairs, rows);
        tensors[num_tensors++] = (struct safetensors_source){
            frequency_names[i], rows, NUM_PARTS, pairs > 1 ? pairs : 0};
    }
    attn_status status = safetensors_write_file(path, tensors, num_tensors, entries,
                                                num_entries, ret_error);
    free(parts);
    return status;
}

/* --- reading --- */

bool layer_file_is(const struct safetensors *file) {
    const char *layout = safetensors_get_metadata(file, "layout");
    return layout != NULL && strcmp(layout, LAYER_FILE_LAYOUT) == 0;
}

/* Parses a number larger than 0; *ret_number is 0 for any other text. */
static attn_status parse_number(const char *text, double *ret_number) {
    json_error_t error = {.line = 0};
    json_t *json = json_loads(text, JSON_DECODE_ANY, &error);
    double number = json_number_value(json);

    json_decref(json);
    *ret_number = number > 0 && isfinite(number) ? number : 0;
    /* jansson leaves the text empty where an allocation of its own failed */
    bool is_short = json == NULL && (error.text[0] == '\0' ||
                                     json_error_code(&error) == json_error_out_of_memory);
    return is_short ? ATTN_E_NOMEM : ATTN_OK;
}

/* Finds the word, or returns false. */
static bool find_entry_word(const struct field *field, const char *text,
                            unsigned *ret_index) {
    for (unsigned i = 0; field->words[i] != NULL; i++) {
        if (strcmp(field->words[i], text) != 0)
            continue;
        *ret_index = i;
        return true;
    }
    return false;
}

/* Sets the member of a field to what `text` says. Returns ATTN_E_VALUE where it cannot
 * say so, or ATTN_E_NOMEM. */
static attn_status read_field(attn_model *model, const struct field *field,
                              const char *text) {
    void *member = (char *)model + field->offset;
    attn_status status = ATTN_OK;
    bool good = false;
    double number = 0;
    size_t count;
    unsigned choice;

    if (field->kind == FIELD_COUNT || field->kind == FIELD_NUMBER)
        status = parse_number(text, &number);
    if (status != ATTN_OK)
        return status;
    switch (field->kind) {
    case FIELD_COUNT:
        good = number >= 1 && number <= (double)COUNT_MAX && floor(number) == number;
        count = good ? (size_t)number : 0;
        memcpy(member, &count, sizeof count);
        break;
    case FIELD_NUMBER:
        good = number > 0;
        memcpy(member, &number, sizeof number);
        break;
    case FIELD_FLAG:
        good = *(bool *)member = strcmp(text, "true") == 0;
        break;
    case FIELD_CHOICE:
        good = find_entry_word(field, text, &choice);
        if (good)
            memcpy(member, &choice, sizeof choice);
        break;
    case FIELD_WORD:
        good = find_entry_word(field, text, &choice);
        if (good)
            memcpy(member, &field->words[choice], sizeof field->words[choice]);
        break;
    }
    return good ? ATTN_OK : ATTN_E_VALUE;
}

/* Returns the key of a member that cannot be as it is beside others, or NULL. */
static const char *find_wrong_member(const attn_model_info *info) {
    size_t kv_heads = info->num_kv_heads;
    bool rotates = info->rope_size > 0;
    bool applied = info->pre_norm_applied, cross = info->kind[0] == 'c';

    if (info->query_size == 0 || info->key_size == 0 || info->value_size == 0 ||
        info->out_size == 0)
        return "a size";
    if (info->num_heads == 0 || info->head_size == 0)
        return info->num_heads == 0 ? "num_heads" : "head_size";
    if (kv_heads == 0 || info->num_heads % kv_heads != 0)
        return "num_kv_heads";
    if (info->rope_size > info->head_size || info->rope_size % 2 != 0)
        return "rope_size";
    if (rotates && (info->rope_type == NULL || info->rope_base == 0))
        return info->rope_type == NULL ? "rope_type" : "rope_base";
    if (info->head_norm != ATTN_NORM_NONE && info->head_norm_eps == 0)
        return "head_norm_eps";
    if (applied && (info->pre_norm == ATTN_NORM_NONE || info->pre_norm_eps == 0))
        return "pre_norm_eps";
    if (applied && !cross &&
        (info->key_size != info->query_size || info->value_size != info->query_size))
        return "key_size";
    return info->scale == 0 ? "scale" : NULL;
}

/* Reads the entries of __metadata__ into ret_model, which has no arrays then. */
static attn_status read_entries(const struct safetensors *file, attn_model *ret_model,
                                attn_error *ret_error) {
    *ret_model = (attn_model){.info = {.layout = LAYER_FILE_LAYOUT,
                                       .output_projection = true,
                                       .kind = kind_words[0]}};
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        const char *text = safetensors_get_metadata(file, fields[i].key);
        attn_status status =
            text == NULL ? ATTN_OK : read_field(ret_model, &fields[i], text);
        if (status == ATTN_E_NOMEM)
            return error_set(ret_error, status, "not enough memory for its sizes");
        if (status != ATTN_OK)
            return error_set(ret_error, status,
                             "%s is '%.40s' in __metadata__, which is not possible; "
                             "write the file again",
                             fields[i].key, text);
    }

    const char *wrong = find_wrong_member(&ret_model->info);
    if (wrong == NULL)
        return ATTN_OK;
    return error_set(ret_error, ATTN_E_VALUE,
                     "%s is missing in __metadata__, or does not fit the rest; write the "
                     "file again",
                     wrong);
}

static int compare_array_name(const void *name, const void *tensor) {
    return strcmp(name, ((const struct safetensors_tensor *)tensor)->name);
}

/* Finds a tensor and checks its shape. */
static attn_status find_array(const struct safetensors *file, const char *name,
                              size_t rows, size_t columns,
                              const struct safetensors_tensor **ret_tensor,
                              attn_error *ret_error) {
    size_t count, rank = columns > 1 ? 2 : 1;
    const struct safetensors_tensor *all = safetensors_get_tensors(file, &count);
    const struct safetensors_tensor *tensor =
        bsearch(name, all, count, sizeof *all, compare_array_name);

    if (tensor == NULL) {
        error_set(ret_error, ATTN_E_FORMAT,
                  "tensor '%s' is missing, which __metadata__ announces", name);
        return ATTN_E_FORMAT;
    }
    if (tensor->rank != rank || tensor->shape[0] != rows ||
        (rank == 2 && tensor->shape[1] != columns)) {
        error_set(ret_error, ATTN_E_SHAPE,
                  "tensor '%s' has another shape than [%zu,%zu], which "
                  "__metadata__ means",
                  name, rows, columns);
        return ATTN_E_SHAPE;
    }
    *ret_tensor = tensor;
    return ATTN_OK;
}

/* Reads a list of R/2 frequencies; none into NULL. */
static attn_status read_frequencies(const struct safetensors *file, const char *name,
                                    size_t count, double *ret_frequencies,
                                    attn_error *ret_error) {
    const struct safetensors_tensor *tensor;

    if (ret_frequencies == NULL)
        return ATTN_OK;
    attn_status status = find_array(file, name, NUM_PARTS, count, &tensor, ret_error);
    for (size_t a = 0; a < count && status == ATTN_OK; a++) {
        ret_frequencies[a] = 0;
        for (size_t part = 0; part < NUM_PARTS && status == ATTN_OK; part++) {
            float number = 0;
            status =
                safetensors_read(file, tensor, part * count + a, 1, &number, ret_error);
            ret_frequencies[a] += (double)number;
        }
    }
    return status;
}

/* weight_source.read */
static attn_status read_arrays(const void *context, attn_model *model,
                               attn_error *ret_error) {
    const struct safetensors *file = context;
    struct model_array arrays[MODEL_ARRAYS];
    double *const lists[] = {model->rotation.frequencies,
                             model->rotation.long_frequencies};
    attn_model said;

    attn_status status = read_entries(file, &said, ret_error);
    model_list_arrays(model, arrays);
    for (size_t i = 0; i < MODEL_ARRAYS && status == ATTN_OK; i++) {
        const struct safetensors_tensor *tensor;
        if (!arrays[i].present)
            continue;
        status = find_array(file, arrays[i].name, arrays[i].rows, arrays[i].columns,
                            &tensor, ret_error);
        if (status == ATTN_OK)
            status = safetensors_read(file, tensor, 0, tensor->elements,
                                      *arrays[i].pointer, ret_error);
    }
    for (size_t i = 0; i < FREQUENCIES && status == ATTN_OK; i++)
        status = read_frequencies(file, frequency_names[i], model->info.rope_size / 2,
                                  lists[i], ret_error);
    if (status != ATTN_OK || model->info.rope_size == 0)
        return status;
    model->rotation.magnitude = said.rotation.magnitude;
    model->rotation.factor = said.rotation.factor;
    model->rotation.max_length = said.rotation.max_length;
    model->rotation.base = said.info.rope_base;
    return ATTN_OK;
}

/* Reads the entries and checks all shapes but those of the rotation, which are small. */
static attn_status check_layer_file(const struct safetensors *file,
                                    attn_model_info *ret_info, attn_error *ret_error) {
    struct model_array arrays[MODEL_ARRAYS];
    const struct safetensors_tensor *tensor;
    attn_model model;

    attn_status status = read_entries(file, &model, ret_error);
    if (status != ATTN_OK)
        return status;
    model_list_arrays(&model, arrays);
    for (size_t i = 0; i < MODEL_ARRAYS && status == ATTN_OK; i++) {
        if (arrays[i].present)
            status = find_array(file, arrays[i].name, arrays[i].rows, arrays[i].columns,
                                &tensor, ret_error);
    }
    *ret_info = model.info;
    return status;
}

attn_status layer_file_create_model(const char *name, const struct safetensors *file,
                                    const attn_engine_options *engine,
                                    attn_model **ret_model, attn_error *ret_error) {
    attn_model_info info;
    attn_status status = check_layer_file(file, &info, ret_error);
    if (status != ATTN_OK)
        return status;

    memcpy(info.name, name, strlen(name) + 1);
    const struct weight_source source = {
        .info = &info, .read = read_arrays, .context = file};
    return assemble_from_source(&source, engine, ret_model, ret_error);
}

attn_status layer_file_describe(const struct safetensors *file,
                                const attn_engine_options *engine, bool check_weights,
                                attn_model_info *ret_info, attn_error *ret_error) {
    attn_model_info info;
    attn_model *model = NULL;

    attn_status status = check_layer_file(file, &info, ret_error);
    if (status == ATTN_OK && check_weights)
        status = assemble_check_memory(&info, ret_error);
    if (status == ATTN_OK && check_weights)
        status = attn_model_create(&info, &model) == ATTN_OK
                     ? read_arrays(file, model, ret_error)
                     : error_set(ret_error, ATTN_E_NOMEM, "not enough memory for it");
    attn_model_destroy(model);
    return status != ATTN_OK ? status
                             : model_describe(&info, engine, ret_info, ret_error);
}
