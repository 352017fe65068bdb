/* SPDX-License-Identifier: Apache-2.0 */
/* test_math_kernels_panels.c: both forms of attention beside plain loops in double, in
 * each set of kernels, with windows, softcaps and biases. */
#include <attnd/library.h>
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#include "every_set.h"

#include "random_panel.h"
#include "ref_round.h"

#define CASES   400
#define NOTHING ((double)-INFINITY)

/* What one query attends to, by plain loops. */
struct expected {
    double weights[3000], outputs[WIDEST];
    double log_sum; /* of powers of 2; NOTHING without keys */
};

/* Returns the score of a key. */
static double plain_score(const struct random_panel *p, size_t c, size_t k) {
    const struct query_panel *panel = &p->panel;
    const float *query = p->queries + c * panel->queries_ld;
    const float *key = p->keys + k * panel->keys_ld;
    const float scale = 1.4426950408889634F * panel->scale; /* of powers of 2 */
    bool rounds = kernels->k_step == 2;
    double sum = 0;

    bool alone = panel->key_len == 1 && !p->chunk;
    if (p->uniform[c] || (alone && p->bias == NULL)) /* whatever the score */
        return 0;
    for (size_t d = 0; d < panel->score_size; d++) {
        sum += panel->additive_score != NULL
                   ? (double)panel->additive_score[d] *
                         tanh((double)query[d] + (double)key[d])
                   : ref_factor(rounds, (double)(query[d] * scale)) *
                         ref_factor(rounds, (double)key[d]) * log(2);
    }
    if (panel->softcap != 0.0F)
        sum = (double)panel->softcap * tanh(sum / (double)panel->softcap);
    return p->bias != NULL ? sum + (double)p->bias[c * panel->key_len + k] : sum;
}

static void expect_query(const struct random_panel *p, size_t c, struct expected *e) {
    const struct query_panel *panel = &p->panel;
    double max = NOTHING, sum = 0;

    for (size_t k = 0; k < panel->key_len; k++) {
        e->weights[k] = attends(p, c, k) ? plain_score(p, c, k) : NOTHING;
        max = fmax(max, e->weights[k]);
    }
    for (size_t k = 0; k < panel->key_len; k++)
        sum += e->weights[k] = attends(p, c, k) ? exp(e->weights[k] - max) : 0;
    e->log_sum = (max + log(sum)) / log(2);
    if (max == NOTHING) {
        sum = 1;
        e->log_sum = NOTHING;
    }
    memset(e->outputs, 0, sizeof e->outputs);
    for (size_t k = 0; k < panel->key_len; k++) {
        e->weights[k] /= sum;
        for (size_t d = 0; attends(p, c, k) && d < panel->head_size; d++)
            e->outputs[d] +=
                e->weights[k] *
                ref_factor(kernels->k_step == 2, (double)p->values[k * p->values_ld + d]);
    }
}

/* In bfloat16 each weight is off by up to half a unit, 2^-9 of itself, relative to a
 * largest one which not all kernels have in common; the rest is float32. */
static double tolerance(void) {
    return kernels->k_step == 2 ? 0x1p-9 + 4e-4 : ATTN_TOLERANCE_F32;
}

static void expect_close(float got, double exact, const char *what) {
    if (!isfinite(exact) && !isfinite(got))
        return;
    if (!(fabs((double)got - exact) <= tolerance() * fmax(1, fabs(exact))))
        fail_msg("%s: %.9g instead of %.9g", what, (double)got, exact);
}

/* Compares what query c got. In a chunk it is `unit` times as large. */
static void expect_result(const struct random_panel *p, size_t c,
                          const struct expected *e, const struct results *got) {
    const struct query_panel *panel = &p->panel;
    const float *weights = got->weights + c * panel->key_len;
    const float *outputs = got->outputs + c * panel->outputs_ld;
    double unit = 1, factor = (double)panel->factor;

    if (p->chunk) {
        unit = got->sum[c] > 0 ? (double)got->sum[c] : 1;
        factor = 1;
        if (e->log_sum == NOTHING)
            assert_true(got->max[c] == -INFINITY && got->sum[c] == 0);
        else
            expect_close((float)((double)got->max[c] + log2((double)got->sum[c])),
                         e->log_sum, "logarithm of the sum");
    }
    for (size_t d = 0; d < panel->head_size; d++)
        expect_close((float)((double)outputs[d] / unit), e->outputs[d] * factor,
                     "output");
    for (size_t k = 0; p->wanted[c] && k < panel->key_len; k++) {
        expect_close((float)((double)weights[k] / unit), e->weights[k], "weight");
        if (!attends(p, c, k))
            assert_true(weights[k] == 0);
    }
}

/* Compares the sum of the weights of keys first..last, of which some may not exist. */
static void expect_sum(const struct random_panel *p, const struct expected *e,
                       double unit, ptrdiff_t first, ptrdiff_t last, float got,
                       const char *what) {
    double sum = 0;
    for (ptrdiff_t k = first < 0 ? 0 : first; k <= last; k++)
        sum += k < (ptrdiff_t)p->panel.key_len ? e->weights[k] : 0;
    expect_close((float)((double)got / unit / 4), sum / 4, what); /* of thousands */
}

/* Every MARKED-th key, from the first on. */
#define MARKED 7

/* Compares sums over the keys that are marked, or over those that are not. */
static void expect_key_sums(const struct random_panel *p, size_t c,
                            const struct expected *e, double unit, bool marked,
                            const struct key_sums *got) {
    ptrdiff_t own = p->panel.position + (ptrdiff_t)c;
    double entropy = 0, distance = 0, total = 0, prefix = 0;

    for (size_t k = 0; k < p->panel.key_len; k++) {
        double w = e->weights[k] * unit;
        if ((k % MARKED == 0) != marked)
            continue;
        entropy -= w > 0 ? w * log(w) : 0;
        distance += fabs((double)(own - (ptrdiff_t)k)) * w;
        total += w;
        prefix += (ptrdiff_t)k <= own ? w : 0;
    }
    expect_close((float)((got->entropy[c] - entropy) / unit / 30), 0, "entropy");
    expect_close((float)((got->distance[c] - distance) / unit / 3000), 0, "distance");
    expect_close((float)(got->total[c] / unit / 4), total / unit / 4, "total");
    expect_close((float)(got->prefix[c] / unit / 4), prefix / unit / 4, "prefix");
}

static void expect_sums(const struct random_panel *p, size_t c, const struct expected *e,
                        double unit, const struct panel_sums *got) {
    ptrdiff_t own = p->panel.position + (ptrdiff_t)c;

    expect_key_sums(p, c, e, unit, true, &got->marked);
    expect_key_sums(p, c, e, unit, false, &got->rest);
    expect_sum(p, e, unit, 0, 0, got->first[c], "first");
    for (ptrdiff_t at = 0; at <= 2 * KERNEL_REACH; at++) {
        ptrdiff_t k = own + at - KERNEL_REACH;
        expect_sum(p, e, unit, k, k < 0 ? -1 : k, got->at[c][at], "at an offset");
    }
}

/* Compares both forms, and sums of weights, with plain loops. */
static void expect_plain_results(struct random_panel *p) {
    static struct results many, few;
    static struct expected e;
    struct panel_sums sums;
    int32_t *to_mark = malloc(p->panel.key_len * sizeof *to_mark);

    assert_non_null(to_mark);
    for (size_t k = 0; k < p->panel.key_len; k++)
        to_mark[k] = (int32_t)((MARKED - k % MARKED) % MARKED);
    p->panel.to_mark = to_mark;
    p->panel.sums = &sums;
    attend(kernels->attend, kernels->columns, p, &many);
    p->panel.sums = NULL;
    attend(kernels->attend_few, kernels->columns, p, &few);
    for (size_t c = 0; c < p->panel.num_queries; c++) {
        expect_query(p, c, &e);
        expect_result(p, c, &e, &many);
        expect_result(p, c, &e, &few);
        bool scaled = p->chunk && many.sum[c] > 0;
        expect_sums(p, c, &e, scaled ? (double)many.sum[c] : 1, &sums);
    }
    free(to_mark);
    free(many.weights);
    free(few.weights);
}

static void test_panels_are_what_plain_loops_make_of_them(void **state) {
    static const size_t head_sizes[] = {1, 16, 20, 64, 80, 128, 256};
    uint64_t seed = unit_seed(20261122);
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct random_panel p;
        size_t num_queries = random_between(&seed, 1, kernels->columns);
        random_panel_init(&seed, num_queries, head_sizes[i % 7], &p);
        p.panel.scale = 1.0F / sqrtf((float)p.panel.score_size);
        p.panel.position = (ptrdiff_t)random_between(&seed, 0, p.panel.key_len) - 5;
        expect_plain_results(&p);
        random_panel_deinit(&p);
    }
}

/* --- one query and one key --- */

/* A query [1] and a key [1] with a value, whose score is the query. */
struct single {
    struct query_panel panel;
    float query, key, value, output, max, sum, weight, *weights;
    size_t end_keys;
    bool uniform;
};

static void single_init(struct single *s, float query) {
    float one = 1;
    *s = (struct single){.query = query, .end_keys = 1};
    s->key = s->value = one;
    if (kernels->k_step == 2) {
        kernels->convert_bf16(&one, 1, 1, 1, &s->key, 1);
        kernels->pack_pairs_bf16(&one, 1, 1, 1, &s->value, 1);
    }
    s->weights = &s->weight;
    s->panel = (struct query_panel){.queries = &s->query,
                                    .queries_ld = 1,
                                    .num_queries = 1,
                                    .keys = &s->key,
                                    .keys_ld = 1,
                                    .values = &s->value,
                                    .values_ld = 1,
                                    .key_len = 1,
                                    .end_keys = &s->end_keys,
                                    .uniform = &s->uniform,
                                    .score_size = 1,
                                    .head_size = 1,
                                    .scale = 1,
                                    .factor = 1,
                                    .outputs = &s->output,
                                    .outputs_ld = 1,
                                    .weights = &s->weights};
}

/* The largest score of a chunk of one key is its score, as an exponent of 2. */
static void test_softcap_is_exact_near_zero_and_far_from_it(void **state) {
    static const float softcaps[] = {1, 20, 30, 50};
    double worst = 0;
    (void)state;
    if (kernels->k_step == 2) /* a score is rounded to bfloat16 before */
        skip();

    void *scratch = allocate(kernel_scratch_bytes(1, 1, 1, true) / sizeof(float));
    for (float x = 1e-6F; x < 1e6F; x *= 1.0173F) {
        struct single s;
        single_init(&s, x);
        float softcap = s.panel.softcap = softcaps[(size_t)(x * 1e7F) % 4];
        s.panel.max = &s.max;
        s.panel.sum = &s.sum;
        s.panel.scratch = scratch;
        for (int sign = -1; sign <= 1; sign += 2) {
            s.query = (float)sign * x;
            kernels->attend(&s.panel);
            double limit = (double)softcap / log(2);
            double score = (double)(s.query * 1.4426950408889634F);
            double exact = limit * tanh(score / limit);
            worst = fmax(worst, fabs((double)s.max - exact) / fabs(exact));
        }
    }
    free(scratch);
    print_message("%s: worst error %.2f * 2^-24\n", kernels->name, worst * 0x1p24);
    assert_true(worst <= 8 * 0x1p-24);
}

/* Runs a single query in both forms; returns its output. */
static float run_single(struct single *s) {
    void *scratch = allocate(kernel_scratch_bytes(1, 1, 1, true) / sizeof(float));
    s->panel.scratch = scratch;
    kernels->attend(&s->panel);
    float output = s->output, weight = s->weight;
    kernels->attend_few(&s->panel);
    assert_true(s->output == output || (isnan(s->output) && isnan(output)));
    assert_true(s->weight == weight || (isnan(s->weight) && isnan(weight)));
    free(scratch);
    return output;
}

/* Weights are powers of 2, off by what 2^x is, and never denormal: those are slow. */
static void test_weights_are_powers_of_two(void **state) {
    enum { KEYS = 160 };
    static const float steps[] = {1, 0.0625F}; /* scores are exact in bfloat16, too */
    const double most = kernels->k_step == 2 ? 2e-4 : 1e-6;
    const size_t keys = KEYS;
    float values[KEYS] = {0}, weights[KEYS], *row = weights;
    (void)state;

    for (size_t i = 0; i < 2 * sizeof steps / sizeof steps[0]; i++) {
        float scores[KEYS];
        struct single s;
        single_init(&s, 1);
        for (size_t k = 0; k < KEYS; k++)
            scores[k] = -(float)k * steps[i / 2];
        if (kernels->k_step == 2)
            kernels->convert_bf16(scores, 1, KEYS, 1, scores, 1);
        s.panel.keys = scores;
        s.panel.values = values;
        s.panel.key_len = KEYS;
        s.panel.end_keys = &keys;
        s.panel.scale = (float)log(2);
        s.panel.weights = &row;
        s.panel.scratch =
            allocate(kernel_scratch_bytes(1, 1, KEYS, true) / sizeof(float));
        (i % 2 == 0 ? kernels->attend : kernels->attend_few)(&s.panel);
        for (size_t k = 0; k < KEYS; k++) {
            double exact = exp2(-(double)k * (double)steps[i / 2]);
            double got = (double)weights[k] / (double)weights[0];
            assert_true(exact < 0x1p-126 ? got == 0 : fabs(got - exact) <= most * exact);
        }
        free(s.panel.scratch);
    }
}

static void test_a_query_whose_pairs_are_all_masked_gets_no_number(void **state) {
    const float bias[KERNEL_COLUMNS_MAX] = {-INFINITY};
    struct single s;
    (void)state;
    single_init(&s, NAN);
    s.panel.bias = bias;
    s.panel.bias_ld = kernels->columns;
    assert_true(isnan(run_single(&s)) && isnan(s.weight));
    s.uniform = true; /* and then the bias does not count */
    assert_true(run_single(&s) == 1 && s.weight == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_panels_are_what_plain_loops_make_of_them),
        cmocka_unit_test(test_softcap_is_exact_near_zero_and_far_from_it),
        cmocka_unit_test(test_weights_are_powers_of_two),
        cmocka_unit_test(test_a_query_whose_pairs_are_all_masked_gets_no_number),
    };

    return run_with_every_set(tests, sizeof tests / sizeof tests[0]);
}
