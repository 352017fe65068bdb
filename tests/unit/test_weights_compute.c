/* SPDX-License-Identifier: Apache-2.0 */
/* test_weights_compute.c: the models of all layers of tests/data/hf, computed by the
 * reference in float64, give what transformers computes. */
#include "family_cases.h"

#include "math/ref/ref.h"
#include "weights/families/model/make.h"

#include <attnd/library.h>

/* Makes the model of a layer. The caller destroys it. */
static attn_model *make_model(const struct layer *layer, bool pre_norm) {
    attn_model_info info;
    attn_model *model = NULL;
    attn_error error;

    layer_fill_info(layer, pre_norm, &info);
    assert_int_equal(attn_model_create(&info, &model), ATTN_OK);
    if (layer_read_model(layer, model, &error) != ATTN_OK)
        fail_msg("%s", error.text);
    assert_int_equal(attn_model_set_engine(model, NULL, NULL), ATTN_OK);
    return model;
}

/* Compares doubles, with the precision that a case has. */
static double compare_doubles(const double *got, const struct case_tensor *want) {
    float *rounded = malloc(want->count * sizeof *rounded);
    assert_non_null(rounded);
    for (size_t i = 0; i < want->count; i++)
        rounded[i] = (float)got[i];
    double worst = compare(rounded, want);
    free(rounded);
    return worst;
}

/* Runs a model on a case, from `queries`; returns the worst error. */
static double run_case(const attn_model *model, const struct layer_case *want,
                       const float *queries) {
    const attn_model_info *info = attn_model_get_info(model);
    const float *keys = want->keys.values != NULL ? want->keys.values : queries;
    size_t query_lens[2] = {want->num_queries, want->num_queries};
    size_t key_lens[2] = {want->num_keys, want->num_keys};
    attn_request request = {.num_sequences = want->num_sequences,
                            .query_lens = query_lens,
                            .key_lens = key_lens,
                            .queries = queries,
                            .keys = keys,
                            .values = keys,
                            .causal = info->causal,
                            .window = info->window,
                            .need_weights = ATTN_WEIGHTS_ALL};
    struct ref_result result = {
        .outputs = malloc(want->outputs.count * sizeof(double)),
        .weights = malloc(want->weights.count * sizeof(double)),
        .heads = malloc(want->heads.count * sizeof(double)),
    };
    assert_int_equal(want->num_sequences, 2);
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
static double run_layer(const struct layer *layer, const struct layer_case *want) {
    attn_model *model = make_model(layer, false);
    double worst = run_case(model, want, want->queries.values);
    attn_model_destroy(model);

    if (layer->norm_before.kind == NORM_NONE || want->hidden.values == NULL)
        return worst;
    model = make_model(layer, true);
    assert_true(attn_model_get_info(model)->pre_norm_applied);
    worst = fmax(worst, run_case(model, want, want->hidden.values));
    attn_model_destroy(model);
    return worst;
}

static void test_layers_compute_what_transformers_does(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_EXPECTED;) {
        const char *name = expected[i].folder;
        struct folder *folder = must_open(name, NULL);
        size_t count;
        const struct layer *layers = folder_get_layers(folder, &count);
        double worst = 0;

        for (size_t j = 0; j < count; j++, i++) {
            struct layer_case want = read_layer_case(name, layers[j].part);
            double error = run_layer(&layers[j], &want);
            if (!(error <= tolerance))
                fail_msg("%s %s: the worst error is %.3g", name, layers[j].part, error);
            worst = fmax(worst, error);
            free_layer_case(&want);
        }
        print_message("%s: worst error %.2g\n", name, worst);
        folder_close(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layers_compute_what_transformers_does),
    };
    if (attn_init(NULL) != ATTN_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
