/* SPDX-License-Identifier: Apache-2.0 */
/* near_reference.h: compares what an engine computes with the oracle, which rounds as the
 * engine does. Include it after cmocka.h. */
#ifndef ATTND_TESTS_NEAR_REFERENCE_H
#define ATTND_TESTS_NEAR_REFERENCE_H

#include "ref.h"

#include <attnd/model.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* How far a number of bfloat16 may be from the oracle's, relative to the largest. Both
 * round the same factors. What is left are those that lie in the middle between two
 * bfloat16, and the weights: not all kernels round these relative to the same one. */
#define REF_TOLERANCE_BF16 2e-3

/* Sums in float32 are off by less of the magnitudes that they add up. */
#define REF_NUDGE 0x1p-22

#define REF_NUDGED_RUNS 64

/* Members of struct ref_result. */
enum ref_kind { REF_OUTPUTS, REF_WEIGHTS, REF_HEADS, REF_LSE, REF_SCORES };

/* A request, and how its results are compared. */
struct comparison {
    const attn_model *model;
    const attn_request *request;
    struct ref_rounding rounding;
    double tolerance;
    unsigned case_number;
};

/* Returns whether a model computes in bfloat16. */
static inline bool is_bf16(const attn_model *model) {
    const char *precision = attn_model_get_info(model)->engine.precision;
    return precision != NULL && strcmp(precision, "bf16") == 0;
}

static inline struct comparison compare_to_reference(const attn_model *model,
                                                     const attn_request *request,
                                                     unsigned case_number) {
    bool bf16 = is_bf16(model);
    return (struct comparison){
        .model = model,
        .request = request,
        .rounding = {.weights = bf16, .rows = bf16, .state = 1 + case_number},
        .tolerance = bf16 ? REF_TOLERANCE_BF16 : ATTN_TOLERANCE_F32,
        .case_number = case_number};
}

/* Runs the oracle as the engine of a model rounds. */
static inline void run_reference(const attn_model *model, const attn_request *request,
                                 const struct ref_result *ret_result) {
    struct comparison c = compare_to_reference(model, request, 0);
    assert_int_equal(attn_ref_run_rounded(model, request, &c.rounding, ret_result),
                     ATTN_OK);
}

/* Finds the least and the largest that each number becomes when the sums before it are
 * off by what float32 rounds. Both begin as what the oracle expects. */
static inline void find_spread(const struct comparison *c, enum ref_kind kind,
                               size_t count, double *ret_least, double *ret_largest) {
    struct ref_rounding rounding = c->rounding;
    double *numbers = malloc(count * sizeof *numbers);

    assert_non_null(numbers);
    rounding.nudge = REF_NUDGE;
    for (unsigned run = 0; run < REF_NUDGED_RUNS; run++) {
        struct ref_result result = {.outputs = NULL};
        double **members[] = {&result.outputs, &result.weights, &result.heads,
                              &result.lse, &result.scores};
        *members[kind] = numbers;
        assert_int_equal(attn_ref_run_rounded(c->model, c->request, &rounding, &result),
                         ATTN_OK);
        for (size_t i = 0; i < count; i++) {
            ret_least[i] = fmin(ret_least[i], numbers[i]);
            ret_largest[i] = fmax(ret_largest[i], numbers[i]);
        }
    }
    free(numbers);
}

/* Returns the first number that is not within `bound` of what it may be, or `count`. */
static inline size_t find_far(const float *got, const double *least,
                              const double *largest, size_t count, double bound) {
    for (size_t i = 0; i < count; i++) {
        double number = (double)got[i];
        bool same = number == least[i] || number == largest[i]; /* infinite, too */
        if (!same && !(number >= least[i] - bound && number <= largest[i] + bound))
            return i;
    }
    return count;
}

/* Compares numbers with those that the oracle expects. They may differ by the tolerance
 * times the largest of them, which is `unit` at least, and by the least normal float32;
 * and where that is not enough, by as much as the oracle's own differ when its sums are
 * off by what float32 rounds. */
static inline void assert_expected(const struct comparison *c, enum ref_kind kind,
                                   const float *got, const double *want, size_t count,
                                   double unit) {
    static const char *const names[] = {"outputs", "weights", "heads", "lse", "scores"};

    for (size_t i = 0; i < count; i++)
        unit = isinf(want[i]) ? unit : fmax(unit, fabs(want[i]));
    const double bound = fmax(c->tolerance * unit, (double)FLT_MIN);
    if (find_far(got, want, want, count, bound) == count)
        return;

    double *least = malloc(2 * count * sizeof *least), *largest = least + count;
    assert_non_null(least);
    memcpy(least, want, count * sizeof *least);
    memcpy(largest, want, count * sizeof *largest);
    find_spread(c, kind, count, least, largest);
    size_t far = find_far(got, least, largest, count, bound);
    if (far < count)
        fail_msg("case %u: %s[%zu] is %.9g, not %.9g (%.9g to %.9g, largest %g)",
                 c->case_number, names[kind], far, (double)got[far], want[far],
                 least[far], largest[far], unit);
    free(least);
}

#endif
