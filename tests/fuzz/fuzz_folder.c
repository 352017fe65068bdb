/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_folder.c: a config.json, a NUL byte, and a file of safetensors. The layers are
 * refused with one line, or every weight of theirs can be read. */
#include "fuzz.h"
#include "made_folder.h"
#include "weights/layer/gather.h"
#include "weights/layer/make.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOATS_MAX ((size_t)1 << 20) /* of a linear that is read */

static void must(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* Reads a linear into memory of its exact size, where the sanitizer sees an overrun. */
static void read_linear(const struct layer_linear *linear) {
    size_t rows = linear->num_heads * linear->head_rows;
    if (rows == 0 || linear->in_size > FLOATS_MAX / rows)
        return;

    float *weight = malloc(rows * linear->in_size * sizeof *weight);
    float *bias = malloc(rows * sizeof *bias);
    must(weight != NULL && bias != NULL, "out of memory");
    gather_linear(linear, weight, linear->bias == NULL ? NULL : bias, NULL);
    free(weight);
    free(bias);
}

/* Reads all numbers of a layer, where they are few. */
static void read_layer(const struct layer *layer, bool pre_norm) {
    attn_model_info info = layer->info;
    attn_model *model = NULL;

    info.pre_norm.applied = pre_norm && info.pre_norm.kind != ATTN_NORM_NONE;
    if (model_describe(&info, NULL, &info, NULL) != ATTN_OK ||
        info.footprint.parameters > 4 * FLOATS_MAX)
        return;
    must(attn_model_create(&info, &model) == ATTN_OK, "out of memory");
    layer_read_model(layer, model, NULL);
    attn_model_destroy(model);
}

static void check_layers(const struct folder *folder, bool pre_norm) {
    char text[FEATURES_TEXT_SIZE];
    size_t count;
    const struct layer *layers = folder_get_layers(folder, &count);

    must(count > 0, "a folder without layers");
    for (size_t i = 0; i < count; i++) {
        layer_describe_features(&layers[i], text);
        must(text[0] != '\0' && strlen(text) < sizeof text, "a layer without words");
        for (size_t j = 0; j < ATTN_NUM_LINEARS; j++)
            read_linear(&layers[i].linears[j]);
        read_layer(&layers[i], pre_norm);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = size == 0 ? NULL : memchr(data, '\0', size);
    size_t config_size = end == NULL ? size : (size_t)(end - data);
    size_t file_size = end == NULL ? 0 : size - config_size - 1;
    const struct folder_options options = {.pre_norm = size % 2 == 1 ? NULL : "false"};
    struct folder *folder = NULL;
    attn_error error = {.text = ""};

    attn_status status = open_made_folder(data, config_size, end == NULL ? data : end + 1,
                                          file_size, &options, &folder, &error);
    if (status == ATTN_OK)
        check_layers(folder, options.pre_norm == NULL);
    else
        must(folder == NULL && error.text[0] != '\0' && strchr(error.text, '\n') == NULL,
             "not refused with one line");
    folder_close(folder);
    return 0;
}
