/* SPDX-License-Identifier: Apache-2.0 */
/* results.c: the table of results. */
#include "math/plan/results.h"

#include "base/arena.h"
#include "base/pace.h"
#include "base/size.h"

#define PLAIN      (RESULT_JOINED | RESULT_OIP)
#define OF_ROWS    (RESULT_SELECTED | RESULT_BY_ROW)
#define OF_WEIGHTS (OF_ROWS | RESULT_WEIGHED)
#define REDUCED    (OF_WEIGHTS | RESULT_REDUCED)

#define AT(numbers, count) offsetof(attn_result, numbers), offsetof(attn_sizes, count)
#define FLAG(member)       .flag = offsetof(attn_request, member)
#define AXES(...)          .axes = {__VA_ARGS__}

/* Operations that take as long as these: */
#define SUM_FLOPS     4   /* a weight that is added up */
#define ENTROPY_FLOPS 256 /* its logarithm */

const struct result result_table[NUM_RESULTS] = {
    [RESULT_OUTPUTS] = {"outputs", "outputs", AXES(AXIS_QUERIES, AXIS_OUT_SIZE),
                        PLAIN | RESULT_PROJECTED, AT(outputs, outputs)},
    [RESULT_WEIGHTS] = {"attention_weights", "weights",
                        AXES(AXIS_MATRICES, AXIS_ROWS, AXIS_KEYS), PLAIN | OF_WEIGHTS,
                        AT(weights, weights)},
    [RESULT_HEADS] = {"heads", "heads", AXES(AXIS_QUERIES, AXIS_HEADS, AXIS_HEAD_SIZE),
                      PLAIN, AT(heads, heads), FLAG(need_heads)},
    [RESULT_LSE] = {"lse", "lse", AXES(AXIS_QUERIES, AXIS_HEADS), PLAIN, AT(lse, lse),
                    FLAG(need_lse), .nullable = true},
    [RESULT_SCORES] = {"scores", "scores", AXES(AXIS_SELECTED, AXIS_ROWS, AXIS_KEYS),
                       OF_ROWS, AT(scores, scores), FLAG(reduce.scores),
                       .nullable = true},
    [RESULT_SPAN_WEIGHTS] = {"span_weights", "spans",
                             AXES(AXIS_SELECTED, AXIS_ROWS, AXIS_SPANS), REDUCED,
                             AT(span_weights, span_weights)},
    [RESULT_TOP_KEYS] = {"top_keys", "top",
                         AXES(AXIS_SELECTED, AXIS_ROWS, AXIS_RANGES, AXIS_TOP), REDUCED,
                         AT(top_keys, top), .integers = true, .nullable = true},
    [RESULT_TOP_WEIGHTS] = {"top_weights", NULL,
                            AXES(AXIS_SELECTED, AXIS_ROWS, AXIS_RANGES, AXIS_TOP),
                            REDUCED, AT(top_weights, top)},
    [RESULT_TARGET_WEIGHTS] = {"target_weights", "target", AXES(AXIS_ROWS, AXIS_SELECTED),
                               REDUCED, AT(target_weights, target_weights),
                               .flops = SUM_FLOPS},
    [RESULT_RECEIVED] = {"received", "received", AXES(AXIS_SELECTED, AXIS_KEYS),
                         REDUCED | RESULT_SUMMED, AT(received, received),
                         FLAG(reduce.received), .flops = SUM_FLOPS},
    [RESULT_ENTROPY] = {"entropy", "entropy", AXES(AXIS_ROWS, AXIS_SELECTED), REDUCED,
                        AT(entropy, entropy), FLAG(reduce.entropy),
                        .flops = ENTROPY_FLOPS},
    [RESULT_BLOCK_WEIGHTS] = {"block_weights", "blocks",
                              AXES(AXIS_SELECTED, AXIS_ROW_BLOCKS, AXIS_KEY_BLOCKS),
                              REDUCED | RESULT_SUMMED, AT(block_weights, block_weights),
                              .flops = SUM_FLOPS},
    [RESULT_CONTRIBUTIONS] = {"contributions", "contributions",
                              AXES(AXIS_ROWS, AXIS_SELECTED, AXIS_OUT_SIZE),
                              RESULT_SELECTED | RESULT_PROJECTED,
                              AT(contributions, contributions), FLAG(need_contributions)},
    [RESULT_PROJECTED_QUERIES] = {"projected_queries", "projections",
                                  AXES(AXIS_QUERIES, AXIS_HEADS, AXIS_SCORE_SIZE),
                                  RESULT_PROJECTED,
                                  AT(projected_queries, projected_queries),
                                  FLAG(need_projections)},
    [RESULT_PROJECTED_KEYS] = {"projected_keys", NULL,
                               AXES(AXIS_KEYS, AXIS_KEY_HEADS, AXIS_SCORE_SIZE),
                               RESULT_PROJECTED, AT(projected_keys, projected_keys),
                               FLAG(need_projections)},
    [RESULT_PROJECTED_VALUES] = {"projected_values", NULL,
                                 AXES(AXIS_KEYS, AXIS_KEY_HEADS, AXIS_HEAD_SIZE),
                                 RESULT_PROJECTED, AT(projected_values, projected_values),
                                 FLAG(need_projections)},
};

bool result_wanted(const attn_request *request, enum result_id id) {
    const attn_reductions *reduce = &request->reduce;

    switch (id) {
    case RESULT_OUTPUTS:
        return !request->omit_outputs;
    case RESULT_WEIGHTS:
        return request->need_weights != ATTN_WEIGHTS_NONE;
    case RESULT_SPAN_WEIGHTS:
        return reduce->spans != NULL;
    case RESULT_TOP_KEYS:
    case RESULT_TOP_WEIGHTS:
        return reduce->top_k > 0;
    case RESULT_TARGET_WEIGHTS:
        return reduce->targets != NULL;
    case RESULT_BLOCK_WEIGHTS:
        return reduce->block > 0;
    default:
        return ((const bool *)request)[result_table[id].flag];
    }
}

void results_find(const attn_model_info *info, const attn_request *request,
                  struct wanted_results *ret_wanted) {
    struct wanted_results wanted = {.info = info, .request = request};
    bool mean = request->need_weights == ATTN_WEIGHTS_MEAN, selects = false;

    for (enum result_id i = 0; i < NUM_RESULTS; i++) {
        if (!result_wanted(request, i))
            continue;
        wanted.has[i] = true;
        wanted.kinds |= result_table[i].kinds;
        selects = selects || ((result_table[i].kinds & RESULT_SELECTED) != 0 &&
                              !(mean && i == RESULT_WEIGHTS));
    }
    wanted.selects_heads = selects && request->weights_heads != NULL;
    wanted.num_selected =
        wanted.selects_heads ? request->num_weights_heads : info->num_heads;
    *ret_wanted = wanted;
}

size_t results_shortest(const size_t *lens, size_t count) {
    size_t shortest = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        pace_add(1);
        shortest = size_min(shortest, lens[i]);
    }
    return shortest;
}

size_t results_top_max(const attn_request *request) {
    const attn_reductions *reduce = &request->reduce;
    size_t least = results_shortest(request->key_lens, request->num_sequences);

    for (size_t i = 0; reduce->top_in != NULL && i < reduce->num_top_in; i++) {
        pace_add(1);
        least = size_min(least, reduce->top_in[2 * i + 1] - reduce->top_in[2 * i]);
    }
    return least;
}

size_t result_rows(const attn_request *request, size_t sequence) {
    return request->weights_queries != NULL ? request->num_weights_queries
                                            : request->query_lens[sequence];
}

size_t result_blocks(const attn_request *request, size_t count) {
    size_t block = request->reduce.block;
    return block > 0 ? count / block + (count % block != 0) : 0;
}

size_t result_model_axis(const attn_model_info *info, enum result_axis axis) {
    switch (axis) {
    case AXIS_HEADS:
        return info->num_heads;
    case AXIS_KEY_HEADS:
        return info->num_kv_heads;
    case AXIS_HEAD_SIZE:
        return info->width.head;
    case AXIS_SCORE_SIZE:
        return info->width.additive > 0 ? info->width.additive : info->width.score;
    case AXIS_OUT_SIZE:
        return info->width.out;
    default:
        return 0;
    }
}

/* Returns the size of an axis of one sequence. */
static size_t find_axis(const struct wanted_results *wanted, enum result_axis axis,
                        size_t sequence) {
    const attn_request *request = wanted->request;

    switch (axis) {
    case AXIS_QUERIES:
        return request->query_lens[sequence];
    case AXIS_ROWS:
        return result_rows(request, sequence);
    case AXIS_KEYS:
        return request->key_lens[sequence];
    case AXIS_SELECTED:
    case AXIS_MATRICES:
        return wanted->num_selected;
    case AXIS_SPANS:
        return request->reduce.num_spans;
    case AXIS_RANGES:
        return request->reduce.num_top_in;
    case AXIS_TOP:
        return request->reduce.top_k;
    case AXIS_ROW_BLOCKS:
        return result_blocks(request, result_rows(request, sequence));
    case AXIS_KEY_BLOCKS:
        return result_blocks(request, request->key_lens[sequence]);
    default:
        return result_model_axis(wanted->info, axis);
    }
}

size_t results_shape(const struct wanted_results *wanted, enum result_id id,
                     size_t sequence, size_t ret_shape[RESULT_AXES_MAX]) {
    const enum result_axis *axes = result_table[id].axes;
    const attn_request *request = wanted->request;
    size_t rank = 0;

    for (size_t i = 0; i < RESULT_AXES_MAX && axes[i] != AXIS_NONE; i++) {
        if ((axes[i] == AXIS_MATRICES && request->need_weights == ATTN_WEIGHTS_MEAN) ||
            (axes[i] == AXIS_RANGES && request->reduce.top_in == NULL))
            continue;
        ret_shape[rank++] = find_axis(wanted, axes[i], sequence);
    }
    return rank;
}

bool results_add(const struct wanted_results *wanted, size_t sequence,
                 size_t counts[NUM_RESULTS]) {
    for (enum result_id i = 0; i < NUM_RESULTS; i++) {
        size_t shape[RESULT_AXES_MAX], rank, count = 1;
        if (!wanted->has[i])
            continue;
        rank = results_shape(wanted, i, sequence, shape);
        for (size_t axis = 0; axis < rank; axis++) {
            if (!size_mul(count, shape[axis], &count))
                return false;
        }
        if (!size_add(counts[i], count, &counts[i]))
            return false;
    }
    return true;
}

void results_add_bytes(const attn_sizes *sizes, size_t *bytes) {
    for (enum result_id id = 0; id < NUM_RESULTS; id++)
        size_add_mul_saturating(bytes, result_count(sizes, id), result_number_bytes(id));
}

bool results_alloc(struct arena *arena, const attn_sizes *sizes,
                   attn_result *ret_result) {
    for (enum result_id id = 0; id < NUM_RESULTS; id++) {
        size_t count = result_count(sizes, id);
        void *numbers =
            count > 0 ? arena_alloc(arena, count, result_number_bytes(id)) : NULL;
        if (count > 0 && numbers == NULL)
            return false;
        result_set_numbers(ret_result, id, numbers);
    }
    return true;
}
