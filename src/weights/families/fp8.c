/* SPDX-License-Identifier: Apache-2.0 */
/* fp8.c: reads quantization_config, and finds the scales of each tensor. A form is never
 * guessed: a scale must have the shape of one that is declared, and of no other. */
#include "weights/families/fp8.h"

#include "base/error.h"
#include "weights/families/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCS      "docs/checkpoints.md#quantized-weights"
#define REMEDY    "save it in bfloat16 or float32 (" DOCS ")"
#define NAME_SIZE 512 /* bytes of a tensor's name that has a scale */

/* Forms by the words of a quant_method, of a quant_algo, and of a strategy. */
static const struct {
    const char *word;
    struct fp8_form form;
    bool exponents;
} words[] = {
    {"fbgemm_fp8", {1, 0}, false}, {"mxfp8", {1, 32}, true},
    {"FP8", {0, 0}, false},        {"FP8_PER_CHANNEL_PER_TOKEN", {1, 0}, false},
    {"MXFP8", {1, 32}, true},      {"tensor", {0, 0}, false},
    {"channel", {1, 0}, false},
};

/* Returns a text of an object; "" where there is none. */
static const char *get_word(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* A second size of blocks would leave open which one a matrix has. */
static void add_form(struct fp8 *fp8, struct fp8_form form) {
    for (size_t i = 0; i < fp8->num_forms; i++) {
        const struct fp8_form *other = &fp8->forms[i];
        bool blocks = form.columns > 0 && other->columns > 0;
        if (form.rows == other->rows && form.columns == other->columns)
            return;
        if (blocks)
            fp8->wrong = "a second size of blocks";
    }
    if (fp8->wrong == NULL)
        fp8->forms[fp8->num_forms++] = form;
}

static void add_word_form(struct fp8 *fp8, const char *word) {
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i].word, word) != 0)
            continue;
        add_form(fp8, words[i].form);
        fp8->exponents = fp8->exponents || words[i].exponents;
    }
}

/* Adds blocks of the sizes that a key has; where `rows` is not 0, of so many rows, and as
 * many columns as the key says. */
static void add_blocks(struct fp8 *fp8, const json_t *object, const char *key,
                       json_int_t rows) {
    const json_t *value = json_object_get(object, key);
    bool pair = rows == 0 && json_array_size(value) == 2;
    json_int_t columns = json_integer_value(pair ? json_array_get(value, 1) : value);

    rows = pair ? json_integer_value(json_array_get(value, 0)) : rows;
    if (rows >= 1 && columns >= 1 && rows <= (json_int_t)CONFIG_COUNT_MAX &&
        columns <= (json_int_t)CONFIG_COUNT_MAX)
        add_form(fp8, (struct fp8_form){(size_t)rows, (size_t)columns});
    else
        fp8->wrong = key;
}

/* quant_method fp8, of DeepSeek and transformers. */
static void read_fp8(struct fp8 *fp8) {
    static const char key[] = "weight_block_size";
    const json_t *block = json_object_get(fp8->quantization, key);
    const char *fmt = get_word(fp8->quantization, "fmt");

    fp8->exponents = strcmp(get_word(fp8->quantization, "scale_fmt"), "ue8m0") == 0;
    if (block != NULL && !json_is_null(block)) {
        add_blocks(fp8, fp8->quantization, key, 0);
    } else {
        add_word_form(fp8, "tensor");
        add_word_form(fp8, "channel");
    }
    if (fmt[0] != '\0' && strcmp(fmt, "e4m3") != 0 && strcmp(fmt, "float8_e4m3fn") != 0)
        fp8->wrong = "fmt";
}

/* quant_method compressed-tensors, of LLM Compressor: groups of modules, of which some
 * may have types that are not read. */
static void read_groups(struct fp8 *fp8) {
    const char *format = get_word(fp8->quantization, "format"), *name;
    json_t *group;

    json_object_foreach(json_object_get(fp8->quantization, "config_groups"), name,
                        group) {
        const json_t *weights = json_object_get(group, "weights");
        const char *strategy = get_word(weights, "strategy");
        if (strcmp(get_word(weights, "type"), "float") != 0 ||
            json_integer_value(json_object_get(weights, "num_bits")) != 8)
            continue;
        if (strcmp(strategy, "block") == 0)
            add_blocks(fp8, weights, "block_structure", 0);
        else if (strcmp(strategy, "group") == 0)
            add_blocks(fp8, weights, "group_size", 1);
        else
            add_word_form(fp8, strategy);
        fp8->exponents = fp8->exponents || strstr(format, "mxfp8") != NULL ||
                         strstr(get_word(group, "format"), "mxfp8") != NULL;
    }
}

/* quant_method modelopt, of NVIDIA: one algorithm, or one for each module. */
static void read_algorithms(struct fp8 *fp8) {
    const json_t *inside = json_object_get(fp8->quantization, "quantization");
    const json_t *object = inside != NULL ? inside : fp8->quantization;
    const char *name;
    json_t *module;

    add_word_form(fp8, get_word(object, "quant_algo"));
    json_object_foreach(json_object_get(object, "quantized_layers"), name, module)
        add_word_form(fp8, get_word(module, "quant_algo"));
}

static void read_quantization(struct fp8 *fp8) {
    const char *method = get_word(fp8->quantization, "quant_method");
    const char *key = "quant_method";

    if (strcmp(method, "fp8") == 0) {
        read_fp8(fp8);
    } else if (strcmp(method, "compressed-tensors") == 0) {
        read_groups(fp8);
        key = "config_groups";
    } else if (strncmp(method, "modelopt", strlen("modelopt")) == 0) {
        read_algorithms(fp8);
        key = "quant_algo";
    } else {
        add_word_form(fp8, method);
    }
    if (fp8->num_forms == 0 && fp8->wrong == NULL)
        fp8->wrong = key;
}

/* Finds the tensor with the scales of `tensor`. Errors: ATTN_E_FORMAT. */
static attn_status find_scale_tensor(const struct tensor_view *view,
                                     const struct safetensors_tensor *tensor,
                                     const struct safetensors_tensor **ret_found,
                                     attn_error *ret_error) {
    const struct safetensors_tensor *found[2] = {NULL, NULL};
    static const char *const endings[] = {"_scale_inv", "_scale"};

    for (size_t i = 0; i < 2; i++) {
        char name[NAME_SIZE];
        int size = snprintf(name, sizeof name, "%s%s", tensor->name, endings[i]);
        if (size > 0 && (size_t)size < sizeof name)
            found[i] = tensor_view_find(view, name);
    }
    *ret_found = found[0] != NULL ? found[0] : found[1];
    if ((found[0] == NULL) != (found[1] == NULL))
        return ATTN_OK;
    error_set(ret_error, ATTN_E_FORMAT,
              "tensor '%.120s' is in FP8, and has %s; copy the folder again",
              tensor->name,
              *ret_found == NULL ? "no scale: neither _scale_inv nor _scale behind "
                                   "its name is a tensor"
                                 : "two scales, _scale_inv and _scale");
    return ATTN_E_FORMAT;
}

/* Finds the form that the shape of a scale fits. Errors: ATTN_E_SHAPE. */
static attn_status find_scale_form(const struct fp8 *fp8,
                                   const struct safetensors_tensor *tensor,
                                   struct safetensors_scale *scale, attn_error *error) {
    const struct safetensors_tensor *stored = &scale->tensor;
    size_t height = tensor->shape[0], width = tensor->shape[1], grid[2] = {1, 1};
    char reason[160];

    for (size_t i = fp8->num_forms; i-- > 0;) {
        const struct fp8_form *form = &fp8->forms[i];
        scale->rows = form->rows > 0 ? form->rows : height;
        scale->columns = form->columns > 0 ? form->columns : width;
        grid[0] = (height - 1) / scale->rows + 1;
        grid[1] = (width - 1) / scale->columns + 1;
        if (stored->rank == 2
                ? stored->shape[0] == grid[0] && stored->shape[1] == grid[1]
                : stored->rank < 2 && form->columns == 0 && stored->elements == grid[0])
            return ATTN_OK;
    }
    snprintf(reason, sizeof reason, "so config.json says of '%.80s', which is [%zu,%zu]",
             tensor->name, height, width);
    tensor_fit(stored, &grid[0], &grid[1], reason, error);
    return error->status;
}

static bool is_fp8(const struct safetensors_tensor *tensor) {
    return strcmp(tensor->dtype->name, dtype_e4m3.name) == 0;
}

/* Finds the scales of a tensor whose type has no to_float. Errors: those of
 * fp8_refuse(). */
static attn_status find_scale(const struct tensor_view *view,
                              const struct safetensors_tensor *tensor,
                              struct safetensors_scale *ret_scale, attn_error *error) {
    const struct fp8 *fp8 = view->fp8;
    const struct safetensors_tensor *found = NULL;
    const char *type = tensor->dtype->name;

    if (fp8 == NULL || !is_fp8(tensor))
        return error_set(error, ATTN_E_UNSUPPORTED,
                         "tensor '%.120s' has dtype %s: the weights are quantized; save "
                         "them in bfloat16 or float32 (" DOCS ")",
                         tensor->name, type);
    if (fp8->quantization == NULL || fp8->wrong != NULL)
        return error_set(
            error, ATTN_E_UNSUPPORTED,
            "tensor '%.120s' is in FP8, but %s of config.json is %s; " REMEDY,
            tensor->name, fp8->quantization == NULL ? "quantization_config" : fp8->wrong,
            fp8->quantization == NULL ? "missing" : "not one that attnd reads");
    if (tensor->rank != 2 || tensor->elements == 0)
        return error_set(error, ATTN_E_UNSUPPORTED,
                         "tensor '%.120s' is in FP8, but not a matrix; " REMEDY,
                         tensor->name);
    attn_status status = find_scale_tensor(view, tensor, &found, error);
    if (status != ATTN_OK)
        return status;

    *ret_scale = (struct safetensors_scale){.tensor = *found};
    type = found->dtype->name;
    if (strcmp(type, dtype_e8m0.name) == 0 || (fp8->exponents && strcmp(type, "U8") == 0))
        ret_scale->tensor.dtype = &dtype_e8m0;
    else if (found->dtype->to_float == NULL || found->dtype->bits > 32)
        return error_set(error, ATTN_E_UNSUPPORTED,
                         "tensor '%.120s' has dtype %s, but scales are F32, F16, BF16 or "
                         "F8_E8M0, or U8 where config.json says mxfp8 or ue8m0; " REMEDY,
                         found->name, type);
    return find_scale_form(fp8, tensor, ret_scale, error);
}

attn_status fp8_attach(const json_t *config, struct folder_tensors *tensors,
                       struct fp8 *ret_fp8, attn_error *ret_error) {
    struct tensor_view *view = &tensors->view;
    const json_t *object = json_object_get(config, "quantization_config");
    size_t count = 0;

    if (object == NULL)
        object = json_object_get(json_object_get(config, "text_config"),
                                 "quantization_config");
    *ret_fp8 = (struct fp8){.quantization = object};
    read_quantization(ret_fp8);
    view->fp8 = ret_fp8;
    for (size_t i = 0; i < view->count; i++)
        count += is_fp8(&view->tensors[i]);
    if (count == 0)
        return ATTN_OK;

    ret_fp8->scales = calloc(count, sizeof *ret_fp8->scales);
    if (tensors->copies == NULL) { /* they are those of a file */
        tensors->copies = calloc(view->count, sizeof *tensors->copies);
        if (tensors->copies != NULL)
            memcpy(tensors->copies, view->tensors, view->count * sizeof *view->tensors);
    }
    if (ret_fp8->scales == NULL || tensors->copies == NULL)
        return error_set(ret_error, ATTN_E_NOMEM, "not enough memory to list its scales");

    view->tensors = tensors->copies;
    for (size_t i = 0, used = 0; i < view->count; i++) {
        struct safetensors_tensor *tensor = &tensors->copies[i];
        attn_error ignored = {.status = ATTN_OK}; /* fp8_refuse() says it later */
        if (!is_fp8(tensor) ||
            find_scale(view, tensor, &ret_fp8->scales[used], &ignored) != ATTN_OK)
            continue;
        tensor->dtype = &dtype_e4m3;
        tensor->scale = &ret_fp8->scales[used++];
    }
    return ATTN_OK;
}

void fp8_deinit(struct fp8 *fp8) {
    free(fp8->scales);
}

void fp8_refuse(const struct tensor_view *view, const struct safetensors_tensor *tensor,
                attn_error *error) {
    struct safetensors_scale scale;

    if (error->status == ATTN_OK)
        find_scale(view, tensor, &scale, error);
}
