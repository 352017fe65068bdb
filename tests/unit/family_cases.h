/* SPDX-License-Identifier: Apache-2.0 */
/* family_cases.h: the folders of tests/data/hf, and what transformers computes with their
 * layers. */
#ifndef ATTND_TESTS_FAMILY_CASES_H
#define ATTND_TESTS_FAMILY_CASES_H

#include "weights_file.h"

#include "weights/families/folder.h"

#include <attnd/attention.h>
#include <math.h>

#define FOLDERS TEST_DATA "/hf/"

#define FAMILY_TOLERANCE 2e-5 /* of the largest number of a case */

static inline struct folder *must_open(const char *name,
                                       const struct folder_options *options) {
    char path[512];
    struct folder *folder = NULL;
    attn_error error;

    snprintf(path, sizeof path, FOLDERS "%s", name);
    if (folder_open(path, options, &folder, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    return folder;
}

/* Returns the index of the layer called `part`. */
static inline size_t must_find(const struct folder *folder, const char *part) {
    size_t count;
    const struct layer *layers = folder_get_layers(folder, &count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(layers[i].part, part) == 0)
            return i;
    }
    fail_msg("no layer %s", part);
    return 0;
}

/* A tensor of a case, as it is stored; `values` is freed by the caller. */
struct case_tensor {
    size_t shape[4];
    size_t count;
    float *values;
};

static inline struct safetensors *open_cases(const char *folder) {
    char path[512];
    struct safetensors *file = NULL;
    snprintf(path, sizeof path, FOLDERS "%s/cases.safetensors", folder);
    assert_int_equal(safetensors_open_file(path, &file, NULL), ATTN_OK);
    return file;
}

/* Reads LAYER/KIND; `values` is NULL where there is none. */
static inline struct case_tensor read_case(const struct safetensors *file,
                                           const char *part, const char *kind) {
    struct case_tensor result = {.values = NULL};
    char name[64];

    snprintf(name, sizeof name, "%s/%s", part, kind);
    const struct safetensors_tensor *tensor =
        safetensors_header_find(safetensors_get_header(file), name);
    if (tensor == NULL)
        return result;
    result.count = tensor->elements;
    memcpy(result.shape, tensor->shape, tensor->rank * sizeof(size_t));
    result.values = malloc(result.count * sizeof(float));
    assert_non_null(result.values);
    assert_int_equal(safetensors_read_all(tensor, result.values, NULL), ATTN_OK);
    return result;
}

/* Returns the largest difference, relative to the largest wanted number. No fmax(): gcc
 * 12 for arm64 fails to compile a loop of it here. */
static inline double compare(const float *got, const struct case_tensor *want) {
    double largest = 0, worst = 0;
    for (size_t i = 0; i < want->count; i++) {
        double size = fabs((double)want->values[i]);
        largest = size <= largest ? largest : size;
    }
    for (size_t i = 0; i < want->count; i++) {
        double difference = fabs((double)got[i] - (double)want->values[i]);
        worst = difference <= worst ? worst : difference; /* NaN is the worst */
    }
    return worst / largest;
}

/* The tensors of a case, which has one sequence. Missing keys are the queries, and
 * missing values the keys. `hidden` is the block's input, which may be missing, too. */
struct layer_case {
    struct case_tensor queries, keys, values, hidden, heads, weights, outputs;
    size_t num_queries, num_keys; /* Tq, Tk */
    size_t *axis_positions;       /* of queries and keys, [ATTN_AXES, T]; NULL: none */
};

/* Reads the case of a layer. The caller frees it by free_layer_case(). */
static inline struct layer_case read_layer_case(const char *folder, const char *part) {
    struct safetensors *file = open_cases(folder);
    struct layer_case result = {
        .queries = read_case(file, part, "queries"),
        .keys = read_case(file, part, "keys"),
        .values = read_case(file, part, "values"),
        .hidden = read_case(file, part, "hidden"),
        .heads = read_case(file, part, "heads"),
        .weights = read_case(file, part, "weights"),
        .outputs = read_case(file, part, "outputs"),
    };
    assert_true(result.queries.values != NULL && result.heads.values != NULL &&
                result.weights.values != NULL && result.outputs.values != NULL);
    safetensors_close(file);
    assert_int_equal(result.weights.shape[0], 1);
    result.num_queries = result.weights.shape[2];
    result.num_keys = result.weights.shape[3];
    return result;
}

/* Replaces what a case gives by what it gives at positions of three axes. Returns whether
 * there is that. */
static inline bool read_axes_case(const char *folder, const char *part,
                                  struct layer_case *layer_case) {
    struct safetensors *file = open_cases(folder);
    struct case_tensor positions = read_case(file, part, "positions");

    if (positions.values != NULL) {
        free(layer_case->heads.values);
        free(layer_case->weights.values);
        free(layer_case->outputs.values);
        layer_case->heads = read_case(file, part, "axes.heads");
        layer_case->weights = read_case(file, part, "axes.weights");
        layer_case->outputs = read_case(file, part, "axes.outputs");
        assert_int_equal(positions.count, ATTN_AXES * layer_case->num_queries);
        layer_case->axis_positions = malloc(positions.count * sizeof(size_t));
        assert_non_null(layer_case->axis_positions);
        for (size_t i = 0; i < positions.count; i++)
            layer_case->axis_positions[i] = (size_t)positions.values[i];
    }
    safetensors_close(file);
    free(positions.values);
    return layer_case->axis_positions != NULL;
}

static inline void free_layer_case(struct layer_case *layer_case) {
    free(layer_case->queries.values);
    free(layer_case->keys.values);
    free(layer_case->values.values);
    free(layer_case->hidden.values);
    free(layer_case->heads.values);
    free(layer_case->weights.values);
    free(layer_case->outputs.values);
    free(layer_case->axis_positions);
}

/* Returns the request of a case, from `queries`. `lens` is memory for its lengths. */
static inline attn_request make_case_request(const attn_model *model,
                                             const struct layer_case *want,
                                             const float *queries, size_t lens[2]) {
    const attn_model_info *info = attn_model_get_info(model);
    const float *keys = want->keys.values != NULL ? want->keys.values : queries;

    lens[0] = want->num_queries;
    lens[1] = want->num_keys;
    return (attn_request){.num_sequences = 1,
                          .query_lens = &lens[0],
                          .key_lens = &lens[1],
                          .queries = queries,
                          .keys = keys,
                          .values =
                              want->values.values != NULL ? want->values.values : keys,
                          .axis_positions = want->axis_positions,
                          .axis_key_positions = want->axis_positions,
                          .causal = info->mask.causal,
                          .window = info->mask.window,
                          .chunk = info->mask.chunk,
                          .need_weights = ATTN_WEIGHTS_ALL};
}

#endif
