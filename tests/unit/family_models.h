/* SPDX-License-Identifier: Apache-2.0 */
/* family_models.h: models of the layers of tests/data/hf, computed by the reference. */
#ifndef ATTND_TESTS_FAMILY_MODELS_H
#define ATTND_TESTS_FAMILY_MODELS_H

#include "family_cases.h"

#include "ref.h"
#include "weights/layer/make.h"

/* Makes the model of a layer. The caller destroys it. */
static inline attn_model *make_model(const struct layer *layer, bool pre_norm) {
    attn_model_info info = layer->info;
    attn_model *model = NULL;
    attn_error error;

    info.pre_norm.applied = pre_norm && info.pre_norm.kind != ATTN_NORM_NONE;
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    if (layer_read_model(layer, model, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    assert_int_equal(attn_model_set_engine(model, NULL, NULL), ATTN_OK);
    return model;
}

/* Compares doubles, with the precision that a case has. */
static inline double compare_doubles(const double *got, const struct case_tensor *want) {
    float *rounded = malloc(want->count * sizeof *rounded);
    assert_non_null(rounded);
    for (size_t i = 0; i < want->count; i++)
        rounded[i] = (float)got[i];
    double worst = compare(rounded, want);
    free(rounded);
    return worst;
}

/* Runs a model on a case, from `queries`; returns the worst error. */
static inline double run_case(const attn_model *model, const struct layer_case *want,
                              const float *queries) {
    size_t lens[2];
    attn_request request = make_case_request(model, want, queries, lens);
    struct ref_result result = {
        .outputs = malloc(want->outputs.count * sizeof(double)),
        .weights = malloc(want->weights.count * sizeof(double)),
        .heads = malloc(want->heads.count * sizeof(double)),
    };
    assert_true(result.outputs != NULL && result.weights != NULL && result.heads != NULL);
    assert_int_equal(attn_ref_run(model, &request, &result), ATTN_OK);
    double worst = fmax(compare_doubles(result.outputs, &want->outputs),
                        fmax(compare_doubles(result.weights, &want->weights),
                             compare_doubles(result.heads, &want->heads)));
    free(result.outputs);
    free(result.weights);
    free(result.heads);
    return worst;
}

/* Returns the worst error of a layer, from what its projections get and, where there is a
 * norm before it, from the block's input. */
static inline double run_layer(const struct layer *layer, const struct layer_case *want) {
    attn_model *model = make_model(layer, false);
    double worst = run_case(model, want, want->queries.values);
    attn_model_destroy(model);

    if (layer->info.pre_norm.kind == ATTN_NORM_NONE || want->hidden.values == NULL)
        return worst;
    model = make_model(layer, true);
    assert_true(attn_model_get_info(model)->pre_norm.applied);
    worst = fmax(worst, run_case(model, want, want->hidden.values));
    attn_model_destroy(model);
    return worst;
}

#endif
