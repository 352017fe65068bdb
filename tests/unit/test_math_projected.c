/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_projected.c: projected queries, keys and values as results, against sums in
 * float64, with every engine, instruction set and precision. */
#include "math/model.h"
#include "random_model.h"
#include "ref.h"
#include "sample.h"

#include <attnd/attention.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_engine.h"
#include "run_layer.h"

/* Compares projected rows with sums in float64. */
static void compare_projection(const attn_model *model, attn_linear which, const float *x,
                               size_t in, const float *got, size_t count, size_t out) {
    const float *weight = model_weight(model, which), *bias = model_bias(model, which);
    bool rounded = strcmp(attn_model_get_info(model)->engine.precision, "bf16") == 0;
    double tolerance = rounded ? 0x1p-7 : ATTN_TOLERANCE_F32;

    for (size_t i = 0; i < count; i++) {
        const float *row = x + i / out * in, *factors = weight + i % out * in;
        double sum = bias != NULL ? (double)bias[i % out] : 0;
        double most = fabs(sum) + sum_products(in, factors, row);
        for (size_t c = 0; c < in; c++)
            sum += (double)factors[c] * (double)row[c];
        if (!(fabs((double)got[i] - sum) <= tolerance * most))
            fail_msg("projection %u, number %zu is %.9g, not %.9g", which, i,
                     (double)got[i], sum);
    }
}

static void compare_projections(uint64_t *seed) {
    attn_model_info drawn = random_model_info(seed);
    drawn.score.kind = ATTN_SCALED_DOT_PRODUCT;
    drawn.width.additive = 0;
    random_add_features(seed, RANDOM_KV_HEADS | RANDOM_SIZES, &drawn);
    attn_model *model = random_model(seed, &drawn);
    assert_int_equal(attn_model_set_engine(model, &engine, NULL), ATTN_OK);

    const attn_model_info *info = attn_model_get_info(model);
    size_t score = info->width.score, keys_out = info->num_kv_heads * score;
    struct random_request r;
    attn_sizes sizes;

    random_request_init(seed, model, 12, 12, &r);
    r.request.need_projections = true;
    assert_int_equal(attn_plan(model, &r.request, &sizes, NULL), ATTN_OK);
    assert_int_equal(sizes.projected_keys, sizes.num_keys * keys_out);
    attn_result result = make_result(&sizes);
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    result.projected_queries = nans(sizes.projected_queries);
    result.projected_keys = nans(sizes.projected_keys);
    result.projected_values = nans(sizes.projected_values);
    attn_run(model, &r.request, &sizes, scratch, &result);

    compare_projection(model, ATTN_QUERY, r.request.queries, info->width.query,
                       result.projected_queries, sizes.projected_queries,
                       info->num_heads * score);
    compare_projection(model, ATTN_KEY, r.request.keys, info->width.key,
                       result.projected_keys, sizes.projected_keys, keys_out);
    compare_projection(model, ATTN_VALUE, r.request.values, info->width.value,
                       result.projected_values, sizes.projected_values,
                       info->num_kv_heads * info->width.head);
    free(scratch);
    free(result.projected_queries);
    free(result.projected_keys);
    free(result.projected_values);
    free_result(&result);
    random_request_deinit(&r);
    attn_model_destroy(model);
}

static void test_projections_are_products_with_the_weights(void **state) {
    uint64_t seed = unit_seed(20261128);

    (void)state;
    for (unsigned i = 0; i < 60; i++)
        compare_projections(&seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projections_are_products_with_the_weights),
    };
    return run_with_every_engine(tests, sizeof tests / sizeof *tests);
}
