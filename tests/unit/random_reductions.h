/* SPDX-License-Identifier: Apache-2.0 */
/* random_reductions.h: random reductions of a request, and what the oracle's weights are
 * reduced to. Include it after run_layer.h. */
#ifndef ATTND_TESTS_RANDOM_REDUCTIONS_H
#define ATTND_TESTS_RANDOM_REDUCTIONS_H

#include "random_model.h"

/* The memory of reductions. */
struct random_reductions {
    size_t *spans, *top_in, *targets;
    float *row_weights;
};

/* Returns `count` ranges in order of a generator. */
static size_t *random_ranges(uint64_t *seed, size_t count, size_t keys, size_t least) {
    size_t *ranges = malloc((2 * count + 1) * sizeof *ranges);
    assert_non_null(ranges);
    for (size_t i = 0; i < count; i++) {
        ranges[2 * i] = random_between(seed, 0, keys - least);
        ranges[2 * i + 1] = random_between(seed, ranges[2 * i] + least, keys);
    }
    return ranges;
}

static size_t *random_targets(uint64_t *seed, const attn_request *request) {
    size_t num_queries = 0, row = 0;
    for (size_t s = 0; s < request->num_sequences; s++)
        num_queries += request->query_lens[s];
    size_t *targets = calloc(num_queries, 2 * sizeof *targets);
    assert_non_null(targets);
    for (size_t s = 0; s < request->num_sequences; s++) {
        for (size_t q = 0; q < request->query_lens[s]; q++, row++) {
            if (random_between(seed, 0, 3) == 0)
                continue;
            targets[2 * row] = random_between(seed, 0, request->key_lens[s] - 1);
            targets[2 * row + 1] =
                random_between(seed, targets[2 * row] + 1, request->key_lens[s]);
        }
    }
    return targets;
}

/* Counts some or all of the selected queries from the end. */
static void count_from_the_end(uint64_t *seed, struct random_request *r) {
    const attn_request *request = &r->request;
    bool all = random_between(seed, 0, 1) == 0;

    for (size_t i = 0; r->weights_queries != NULL && i < request->num_weights_queries;
         i++) {
        if (request->num_sequences == 1 && !all && random_between(seed, 0, 1) == 0)
            r->weights_queries[i] -= (ptrdiff_t)request->query_lens[0];
        else if (all)
            r->weights_queries[i] = -1 - r->weights_queries[i];
    }
}

/* Returns factors of -1 to 1, some of them 0, of all queries and heads; NULL where
 * sequences have several lengths. */
static float *random_row_weights(uint64_t *seed, size_t heads,
                                 const attn_request *request) {
    size_t count = heads * request->query_lens[0];
    for (size_t s = 1; s < request->num_sequences; s++) {
        if (request->query_lens[s] != request->query_lens[0])
            return NULL;
    }
    float *factors = malloc(count * sizeof *factors);
    assert_non_null(factors);
    for (size_t i = 0; i < count; i++)
        factors[i] = (float)random_between(seed, 0, 64) / 32 - 1;
    return factors;
}

/* Adds reductions to a request to a layer of so many heads: each, or none of them, half
 * of the time. */
static void add_reductions(uint64_t *seed, size_t heads, struct random_request *r,
                           struct random_reductions *ret) {
    attn_request *request = &r->request;
    attn_reductions *reduce = &request->reduce;
    size_t keys = request->key_lens[0], longest = 1;

    for (size_t s = 0; s < request->num_sequences; s++) {
        keys = keys < request->key_lens[s] ? keys : request->key_lens[s];
        longest = longest > request->key_lens[s] ? longest : request->key_lens[s];
    }
    *ret = (struct random_reductions){0};
    count_from_the_end(seed, r);
    if (random_between(seed, 0, 1) == 0) {
        reduce->num_spans = random_between(seed, 1, 4);
        reduce->spans_per_sequence = random_between(seed, 0, 1) == 0;
        reduce->spans = ret->spans = random_ranges(
            seed,
            reduce->num_spans * (reduce->spans_per_sequence ? request->num_sequences : 1),
            keys, 1);
    }
    if (random_between(seed, 0, 1) == 0) {
        reduce->top_k = random_between(seed, 1, keys < 40 ? keys : 40);
        reduce->num_top_in = random_between(seed, 0, 3);
        ret->top_in = random_ranges(seed, reduce->num_top_in, keys, reduce->top_k);
        reduce->top_in = reduce->num_top_in > 0 ? ret->top_in : NULL;
    }
    if (random_between(seed, 0, 1) == 0)
        reduce->targets = ret->targets = random_targets(seed, request);
    reduce->received = random_between(seed, 0, 1) == 0;
    reduce->entropy = random_between(seed, 0, 1) == 0;
    reduce->scores = random_between(seed, 0, 1) == 0;
    if (random_between(seed, 0, 1) == 0)
        reduce->block = random_between(seed, 1, longest + 1);
    if (random_between(seed, 0, 1) == 0)
        reduce->row_weights = ret->row_weights = random_row_weights(seed, heads, request);
    reduce->row_weights_per_head = random_between(seed, 0, 1) == 0;
}

static void free_reductions(struct random_reductions *reductions) {
    free(reductions->spans);
    free(reductions->top_in);
    free(reductions->targets);
    free(reductions->row_weights);
}

/* One matrix of the oracle's weights, and which it is. */
struct expected_head {
    const attn_model *model;
    const attn_request *request;
    const attn_result *got;
    const double *weights;    /* [rows, keys] */
    const double *scores;     /* [H, Tq, keys] of the sequence, of all heads */
    const double *all_scores; /* [all_scores_count], of all sequences */
    size_t all_scores_count;
    size_t sequence, first_query; /* of the batch */
    size_t heads, head, rows, keys;
    size_t first_score, first_row, first_key, first_block; /* of it in the results */
    unsigned case_number;
};

/* Returns the largest magnitude of a score of the head. */
static double largest_score(const struct expected_head *e) {
    size_t count = e->request->query_lens[e->sequence] * e->keys;
    double largest = 0;

    for (size_t i = 0; i < count; i++) {
        double score = fabs(e->scores[e->head * count + i]);
        largest = score > largest && !isinf(score) ? score : largest;
    }
    return largest;
}

/* Returns whether numbers differ by no more than the bound. Precision is promised while
 * scores stay below 100; errors grow with larger ones. */
static bool is_near(const struct expected_head *e, double got, double expected,
                    double bound) {
    double difference = fabs(got - expected);

    bound *= fmax(1, fabs(expected));
    return difference <= bound || difference <= bound * largest_score(e) / 100;
}

/* Returns whether a score is within a bound of what the oracle's becomes when its sums
 * are off by what float32 rounds; see near_reference.h. */
static bool is_in_spread(const struct expected_head *e, size_t index, double got,
                         double bound) {
    const struct comparison c =
        compare_to_reference(e->model, e->request, e->case_number);
    size_t count = e->all_scores_count;
    double *least = malloc(2 * count * sizeof *least), *largest = least + count;

    assert_non_null(least);
    memcpy(least, e->all_scores, count * sizeof *least);
    memcpy(largest, e->all_scores, count * sizeof *least);
    find_spread(&c, REF_SCORES, count, least, largest);
    bool inside = got >= least[index] - bound && got <= largest[index] + bound;
    free(least);
    return inside;
}

static void assert_near(const struct expected_head *e, const char *what, size_t row,
                        double got, double expected) {
    if (!is_near(e, got, expected, 1e-5))
        fail_msg("case %u: %s of head %zu, row %zu is %.9g, not %.9g", e->case_number,
                 what, e->head, row, got, expected);
}

/* Errors ds of scores change the entropy H by the sum of -w (ln w + H) ds. */
static void assert_entropy(const struct expected_head *e, size_t row, double got,
                           const double *weights) {
    double entropy = 0, gain = 1;

    for (size_t k = 0; k < e->keys; k++)
        entropy -= weights[k] > 0 ? weights[k] * log(weights[k]) : 0;
    for (size_t k = 0; k < e->keys; k++)
        gain += weights[k] > 0 ? weights[k] * fabs(log(weights[k]) + entropy) : 0;
    if (!is_near(e, got, entropy, 1e-5 * gain))
        fail_msg("case %u: entropy of head %zu, row %zu is %.9g, not %.9g",
                 e->case_number, e->head, row, got, entropy);
}

/* Compares a row of scores, whose errors are larger than those of weights: the softmax
 * makes them smaller, and a small score may be the difference of large products. */
static void assert_scores(const struct expected_head *e, size_t row, size_t query) {
    const attn_request *request = e->request;
    size_t head =
        request->weights_heads != NULL ? request->weights_heads[e->head] : e->head;
    const double *expected =
        e->scores + (head * request->query_lens[e->sequence] + query) * e->keys;
    double bound = 4 * compare_to_reference(e->model, request, 0).tolerance;
    const float *got =
        e->got->scores + e->first_score + (e->head * e->rows + row) * e->keys;

    for (size_t k = 0; k < e->keys; k++) {
        if (isinf(expected[k]))
            assert_true(got[k] == -INFINITY);
        else if (!is_near(e, (double)got[k], expected[k], bound) &&
                 !is_in_spread(e, (size_t)(expected + k - e->all_scores), (double)got[k],
                               bound))
            fail_msg("case %u: score of head %zu, row %zu, key %zu is %.9g, not %.9g",
                     e->case_number, e->head, row, k, (double)got[k], expected[k]);
    }
}

static double sum_expected(const double *weights, size_t first, size_t end) {
    double sum = 0;
    for (size_t k = first; k < end; k++)
        sum += weights[k];
    return sum;
}

/* Checks that the weights descend, that each is that of its key, and that no other key is
 * larger than the last one. */
static void assert_top(const struct expected_head *e, size_t row, size_t first,
                       size_t end, const float *weights, const int64_t *keys) {
    const double *all = e->weights + row * e->keys;
    size_t count = e->request->reduce.top_k, larger = 0, found = 0;

    for (; found < count && keys[found] >= 0; found++) {
        size_t key = (size_t)keys[found];
        assert_true(first <= key && key < end);
        assert_near(e, "top", row, (double)weights[found], all[key]);
        if (found > 0)
            assert_true(
                weights[found] < weights[found - 1] ||
                (weights[found] == weights[found - 1] && keys[found] > keys[found - 1]));
    }
    for (size_t i = found; i < count; i++)
        assert_true(keys[i] == -1 && weights[i] == 0);
    for (size_t k = first; k < end; k++)
        larger += all[k] > (found == count ? (double)weights[count - 1] : 0) + 2 * 1e-5;
    assert_true(larger <= found);
}

/* Returns which query of its sequence a row is. */
static size_t query_of(const struct expected_head *e, size_t row) {
    ptrdiff_t query = (ptrdiff_t)row;

    if (e->request->weights_queries != NULL)
        query = e->request->weights_queries[row];
    if (query < 0)
        query += (ptrdiff_t)e->request->query_lens[e->sequence];
    return (size_t)query;
}

/* Compares one row's reductions. */
static void assert_row(const struct expected_head *e, size_t row) {
    const attn_reductions *reduce = &e->request->reduce;
    const double *weights = e->weights + row * e->keys;
    size_t index = e->first_row * e->heads + e->head * e->rows + row;
    size_t pair = (e->first_row + row) * e->heads + e->head;
    size_t ranges = reduce->top_in != NULL ? reduce->num_top_in : 1;
    const size_t *spans = reduce->spans;
    size_t query = query_of(e, row);

    if (reduce->scores)
        assert_scores(e, row, query);
    if (reduce->spans_per_sequence && spans != NULL)
        spans += 2 * e->sequence * reduce->num_spans;
    for (size_t i = 0; spans != NULL && i < reduce->num_spans; i++)
        assert_near(e, "span", row,
                    (double)e->got->span_weights[index * reduce->num_spans + i],
                    sum_expected(weights, spans[2 * i], spans[2 * i + 1]));
    for (size_t i = 0; reduce->top_k > 0 && i < ranges; i++) {
        const size_t *in = reduce->top_in;
        size_t first = (index * ranges + i) * reduce->top_k;
        assert_top(e, row, in != NULL ? in[2 * i] : 0,
                   in != NULL ? in[2 * i + 1] : e->keys, e->got->top_weights + first,
                   e->got->top_keys + first);
    }
    if (reduce->targets != NULL) {
        const size_t *target = reduce->targets + 2 * (e->first_query + query);
        assert_near(e, "target", row, (double)e->got->target_weights[pair],
                    sum_expected(weights, target[0], target[1]));
    }
    if (reduce->entropy)
        assert_entropy(e, row, (double)e->got->entropy[pair], weights);
}

/* Returns the factor of a row in what its keys receive. */
static double expected_factor(const struct expected_head *e, size_t row) {
    const attn_reductions *reduce = &e->request->reduce;
    size_t head = e->head, query = query_of(e, row);

    if (reduce->row_weights == NULL)
        return 1;
    if (e->request->weights_heads != NULL)
        head = e->request->weights_heads[head];
    if (reduce->row_weights_per_head)
        query += head * e->request->query_lens[e->sequence];
    return (double)reduce->row_weights[query];
}

/* Compares what adds up over rows. Factors are at most 1, so errors of sums are bounded
 * as without them. */
static void assert_sums(const struct expected_head *e) {
    const attn_reductions *reduce = &e->request->reduce;
    size_t n = reduce->block, first = e->first_block;

    for (size_t k = 0; reduce->received && k < e->keys; k++) {
        double sum = 0, plain = 0;
        for (size_t q = 0; q < e->rows; q++) {
            sum += expected_factor(e, q) * e->weights[q * e->keys + k];
            plain += e->weights[q * e->keys + k];
        }
        size_t index = e->first_key * e->heads + e->head * e->keys + k;
        double got = (double)e->got->received[index];
        if (!is_near(e, got, sum, 1e-5 * fmax(1, plain)))
            fail_msg("case %u: received of head %zu, key %zu is %.9g, not %.9g",
                     e->case_number, e->head, k, got, sum);
    }
    if (n == 0)
        return;
    first += e->head * ((e->rows + n - 1) / n) * ((e->keys + n - 1) / n);
    for (size_t q = 0; q < e->rows; q += n) {
        size_t rows = e->rows - q < n ? e->rows - q : n;
        for (size_t k = 0; k < e->keys; k += n, first++) {
            double sum = 0;
            for (size_t i = 0; i < rows; i++)
                sum += sum_expected(e->weights + (q + i) * e->keys, k,
                                    k + n < e->keys ? k + n : e->keys);
            assert_near(e, "block", q, (double)e->got->block_weights[first],
                        sum / (double)rows);
        }
    }
}

/* Returns all weights that are selected, of the oracle or, in bfloat16, whose weights are
 * not as near to these, of the layer itself. The caller frees them. */
static double *expected_weights(const attn_model *model, const attn_request *request) {
    attn_request full = *request;
    attn_sizes sizes;
    full.need_weights = ATTN_WEIGHTS_ALL;
    attn_result got = run(model, &full, &sizes);
    double *weights = malloc((sizes.weights + 1) * sizeof *weights);
    assert_non_null(weights);
    for (size_t i = 0; i < sizes.weights; i++)
        weights[i] = (double)got.weights[i];
    if (!is_bf16(model))
        run_reference(model, &full, &(struct ref_result){.weights = weights});
    free_result(&got);
    return weights;
}

/* Returns the oracle's scores of all heads and queries. The caller frees them. */
static double *expected_scores(const attn_model *model, const attn_request *request,
                               size_t *ret_count) {
    size_t count = 0;
    for (size_t s = 0; s < request->num_sequences; s++)
        count += request->query_lens[s] * request->key_lens[s];
    count *= attn_model_get_info(model)->num_heads;
    double *scores = malloc(count * sizeof *scores);
    assert_non_null(scores);
    run_reference(model, request, &(struct ref_result){.scores = scores});
    *ret_count = count;
    return scores;
}

/* Runs a request, and compares what its weights are reduced to with the same reductions
 * of the oracle's weights. */
static void assert_reduced_as_reference(const attn_model *model,
                                        const attn_request *request,
                                        unsigned case_number) {
    double *weights = expected_weights(model, request);
    size_t num_scores;
    double *scores = expected_scores(model, request, &num_scores);
    size_t heads = attn_model_get_info(model)->num_heads;
    attn_sizes sizes;
    attn_result got = run(model, request, &sizes);
    struct expected_head e = {
        .model = model,
        .request = request,
        .got = &got,
        .weights = weights,
        .scores = scores,
        .all_scores = scores,
        .all_scores_count = num_scores,
        .case_number = case_number,
        .heads = request->weights_heads != NULL ? request->num_weights_heads : heads};
    for (; e.sequence < request->num_sequences; e.sequence++) {
        size_t n = request->reduce.block;
        e.keys = request->key_lens[e.sequence];
        e.rows = request->weights_queries != NULL ? request->num_weights_queries
                                                  : request->query_lens[e.sequence];
        for (e.head = 0; e.head < e.heads; e.head++, e.weights += e.rows * e.keys) {
            for (size_t row = 0; row < e.rows; row++)
                assert_row(&e, row);
            assert_sums(&e);
        }
        e.first_query += request->query_lens[e.sequence];
        e.scores += heads * request->query_lens[e.sequence] * e.keys;
        e.first_score += e.heads * e.rows * e.keys;
        e.first_row += e.rows;
        e.first_key += e.keys;
        if (n > 0)
            e.first_block += e.heads * ((e.rows + n - 1) / n) * ((e.keys + n - 1) / n);
    }
    free_result(&got);
    free(weights);
    free(scores);
}

#endif
