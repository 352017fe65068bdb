/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h: multi-head attention over one batch of sequences of any lengths.
 *
 * Tensors are row-major float32. Axes are named in this order everywhere:
 * B sequences, H heads, Tq queries, Tk keys, D head size. The rows of all sequences
 * follow each other without padding: queries are [sum of Tq, query_size].
 *
 *     attn_sizes sizes;
 *     if (attn_plan(model, &request, &sizes, &error) != ATTN_OK) ...
 *     result.outputs = malloc(sizes.outputs * sizeof(float));
 *     scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
 *     attn_run(model, &request, &sizes, scratch, &result);
 */
#ifndef ATTND_ATTENTION_H
#define ATTND_ATTENTION_H

#include <attnd/model.h>
#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes. The address of scratch, and its size, are multiples of this. */
#define ATTN_ALIGNMENT 64

/* Ranges that attn_reductions.top_in may have, each of which takes a look at its keys. */
#define ATTN_TOP_RANGES_MAX 1024

#define ATTN_PLAN_WORDS 192 /* of attn_sizes.plan */

#define ATTN_POSITION_MAX 0x7fffffff /* of a query or key */

/* Axes of a position where rotations have sections: time, row and column, in order. */
#define ATTN_AXES 3

#ifdef __cplusplus
extern "C" {
#endif

struct attn_packed;

typedef enum attn_need_weights {
    ATTN_WEIGHTS_NONE,
    ATTN_WEIGHTS_ALL, /* of every head */
    ATTN_WEIGHTS_MEAN /* their mean over the heads */
} attn_need_weights;

/* A parallel for loop, run by threads of the caller. */
typedef struct attn_parallel {
    size_t num_threads; /* how many may run tasks at the same time, at least 1 */
    /* Calls task(data, index, thread) once for every index below `count`, on any threads,
     * and returns when all calls have returned. Two calls that run at the same time have
     * different numbers `thread`, each below num_threads. */
    void (*run)(void *context, size_t count,
                void (*task)(void *data, size_t index, size_t thread), void *data);
    void *context; /* the first argument of run() */
} attn_parallel;

/* Reductions that are wanted instead of all attention weights. All memory is borrowed and
 * only read. A range of keys is its first key and its end, which is the key after
 * its last one and at most Tk; all but those of targets have at least one key. */
typedef struct attn_reductions {
    /* [num_spans][2] or [B][num_spans][2]: ranges whose weights are summed; or NULL */
    const size_t *spans;
    size_t num_spans;
    bool spans_per_sequence;
    size_t top_k; /* so many of the largest weights of a row; 0: not wanted */
    /* [num_top_in][2]: at most ATTN_TOP_RANGES_MAX ranges of at least top_k keys, each
     * with its own largest weights; NULL: all keys, which are top_k at least */
    const size_t *top_in;
    size_t num_top_in;
    /* [sum of Tq][2]: of each query a range whose weights are summed; 0, 0 for a query
     * without one; NULL: not wanted */
    const size_t *targets;
    /* [sum of Tq], for heads.h alone: what token each row is; NULL: not known. Where
     * Tq is Tk, row i and key i are then the same token, whatever tensors they are in. */
    const size_t *token_ids;
    /* [Tq], or [H, Tq] with row_weights_per_head: the factors of all queries and heads in
     * `received`, for each sequence, which then have as many queries; NULL: 1 */
    const float *row_weights;
    bool row_weights_per_head;
    size_t block;  /* rows and keys of a block; 0: not wanted */
    bool received; /* the weights that each key gets, summed over the rows */
    bool entropy;  /* of each row, in nats */
    bool scores;   /* what the softmax gets: not weights, but selected as they are */
} attn_reductions;

/* One batch. All memory is borrowed and only read. */
typedef struct attn_request {
    size_t num_sequences;     /* B, at least 1 */
    const size_t *query_lens; /* [B], Tq of each sequence, each at least 1 */
    const size_t *key_lens;   /* [B], Tk of each sequence, each at least 1 */
    const float *queries;     /* [sum of Tq, query_size] */
    const float *keys;        /* [sum of Tk, key_size]; may be `queries` itself */
    /* Row i of the keys is the token of row i of the queries where there are as many,
     * wherever they lie, as in self-attention. Only attn_heads_add() asks. */
    bool keys_are_queries;
    /* Instead of `keys`, when not NULL: little-endian elements of the safetensors type
     * keys_type, "BF16" or "F16", at any alignment. Results have the bits that the same
     * numbers have as float32. Only without a model, see dot_product.h. */
    const void *encoded_keys;
    const char *keys_type;
    /* Instead of keys and values, when not NULL: those of one sequence, see
     * math/packed.h. Not for programs. Only without a model. */
    const struct attn_packed *packed;
    const float *values; /* [sum of Tk, value_size]; may be `keys` itself */
    /* Keys at or past a length are not attended to. NULL for all keys; else [B], or
     * [sum of Tq] when valid_lens_per_query is set. None may exceed its sequence's Tk. */
    const size_t *valid_lens;
    bool valid_lens_per_query;
    /* Positions of queries and keys, 0..ATTN_POSITION_MAX; NULL: 0, 1, 2, ... in each
     * sequence. They need not be in order. */
    const size_t *positions;     /* [sum of Tq] */
    const size_t *key_positions; /* [sum of Tk] */
    /* Where rows are on each axis, of as many numbers. Rotations with sections turn by
     * these; all else goes by the positions above. NULL: each axis has these positions.
     * Only of models with rotation.axes 3. */
    const size_t *axis_positions;     /* sequence after sequence [ATTN_AXES, Tq] */
    const size_t *axis_key_positions; /* sequence after sequence [ATTN_AXES, Tk] */
    bool causal;                      /* no key's position is larger than the query's */
    /* [B]: of each sequence so many keys, the first rows, which `causal` does not hide;
     * all else may. NULL: none. None may exceed its sequence's Tk. */
    const size_t *prefix_lens;
    size_t window, chunk; /* see attn_model_info; 0: none. Not the model's default */
    /* Added to the scores, after softcap. -INFINITY masks a key, as valid_lens do; other
     * numbers are finite. That of key k and query q of head h in sequence s is at
     * s * bias_sequence_ld + h * bias_head_ld + q * bias_row_ld + k, where a step may be
     * 0. NULL: none. attn_heads_add() takes none. */
    const float *bias;
    size_t bias_sequence_ld, bias_head_ld, bias_row_ld;
    const float *head_mask; /* NULL or [H]: factor on each head's output; 0 prunes it */
    attn_need_weights need_weights;
    attn_reductions reduce;
    /* Which of the weights are computed, or reduced, in this order; NULL selects all.
     * Heads are selected only among ATTN_WEIGHTS_ALL and for reductions. The queries are
     * those of every sequence, and its shortest sequence has them all. From -1 on, its
     * last one, they are counted from the end. In each sequence they are distinct. */
    const size_t *weights_heads; /* [num_weights_heads], each below H */
    size_t num_weights_heads;
    const ptrdiff_t *weights_queries; /* [num_weights_queries], -Tq..Tq-1 of every Tq */
    size_t num_weights_queries;
    bool omit_outputs;       /* the outputs are not wanted, nor projected */
    bool need_heads;         /* each head's outputs are */
    bool need_contributions; /* what each selected head adds to the outputs is */
    bool need_projections;   /* projected queries, keys and values are */
    bool need_lse;           /* the logarithms of the sums of exponentiated scores are */
    const attn_parallel *parallel; /* NULL: the calling thread does all the work */
} attn_request;

/* Where the results go: memory of the caller, with the sizes that attn_plan() returns. */
typedef struct attn_result {
    float *outputs; /* [sum of Tq, out_size]; NULL when omitted */
    /* Sequence after sequence [H, Tq, Tk], or [Tq, Tk] of the mean; NULL when not wanted.
     * Where heads or queries are selected, H and Tq are their numbers. A row sums to 1
     * and is 0 where the key is not attended to. head_mask does not change the
     * weights. */
    float *weights;
    /* [sum of Tq, H, D]: what the output projection gets, after head_mask, gate and norm;
     * NULL when not wanted. Without an output projection it equals the outputs. */
    float *heads;
    /* [sum of Tq, H, out_size]: what each head adds to the outputs, which are their sum
     * and the bias. Queries and heads are the selected ones; head_mask applies. NULL when
     * not wanted. */
    float *contributions;
    /* [sum of Tq, H, width.score], [sum of Tk, KV, width.score] and [sum of Tk, KV, D]:
     * x W^T and the bias, of all heads, before their norms and rotation. NULL when not
     * wanted. */
    float *projected_queries, *projected_keys, *projected_values;
    /* [sum of Tq, H], natural: of all scores that the softmax has, with a sink of it too.
     * -INFINITY for a query without a valid key. head_mask does not change them. NULL
     * when not wanted. */
    float *lse;
    /* The results of attn_request.reduce, each NULL when not wanted, sequence after
     * sequence. H and Tq are numbers of selected heads and queries. */
    /* [H, Tq, Tk]: after scale, softcap and biases, without sinks; -INFINITY where a key
     * is not attended to. One that overflows is NaN. */
    float *scores;
    float *span_weights; /* [H, Tq, num_spans]: the weights of each range, summed */
    /* [H, Tq, num_top_in or 1, top_k]: the largest weights, and their keys. The largest
     * is first, of equal ones that of the smaller key; where fewer keys are attended to,
     * weight 0 and key -1 follow. A query without a valid key attends to all keys alike,
     * but with a sink to none. */
    float *top_weights;
    int64_t *top_keys;
    float *target_weights; /* [Tq, H] */
    float *received;       /* [H, Tk] */
    float *entropy;        /* [Tq, H] */
    /* [H, ceil(Tq / block), ceil(Tk / block)]: sums over the keys of a block, means over
     * its rows. */
    float *block_weights;
} attn_result;

typedef struct attn_sizes {
    size_t num_queries;   /* sum of Tq */
    size_t num_keys;      /* sum of Tk */
    size_t outputs;       /* floats in attn_result.outputs */
    size_t weights;       /* floats in attn_result.weights */
    size_t heads;         /* floats in attn_result.heads */
    size_t contributions; /* floats in attn_result.contributions */
    size_t projected_queries, projected_keys, projected_values; /* likewise */
    size_t lse; /* floats in attn_result.lse */
    /* Numbers in the results of the same names; those of `top` in each of its two. */
    size_t scores, span_weights, top, target_weights, received, entropy, block_weights;
    size_t scratch_bytes; /* a multiple of ATTN_ALIGNMENT */
    double flops; /* operations, to compare requests by; small batches are weighted up */
    size_t plan[ATTN_PLAN_WORDS]; /* how attn_run() divides its work; not for programs */
} attn_sizes;

/* Checks the lengths of a request against the model, and computes how much memory it
 * needs. Does not read queries, keys or values. Thread-safe; does not allocate.
 *
 * Errors, with one line in ret_error (which may be NULL) and *ret_sizes untouched:
 * ATTN_E_SHAPE for an empty batch or sequence, or more tokens than the context length;
 * ATTN_E_VALUE for a number in valid_lens or prefix_lens over Tk, a position over
 * ATTN_POSITION_MAX, or a selected head or query that does not exist; ATTN_E_UNSUPPORTED
 * for encoded keys with a model, or for positions of three axes without sections;
 * ATTN_E_OVERFLOW when a size cannot be computed. */
ATTN_API attn_status attn_plan(const attn_model *model, const attn_request *request,
                               attn_sizes *ret_sizes, attn_error *ret_error);

/* Computes the results that are wanted: the outputs unless they are omitted, and the
 * weights, heads and log-sum-exps that are asked for. What else is asked for changes no
 * bit of a result, with the native engine.
 *
 * Scores are scaled by the model's `scale`, 1/sqrt(D) unless it has another (Vaswani et
 * al. 2017, section 3.2.1); additive scores are not scaled. Then come softcap, the bias
 * by distance and the mask. Nothing that keys hold which valid_lens, the causal mask or a
 * window hide can reach the result. A query with no valid key attends uniformly to all
 * Tk keys of its sequence, as masking with -1e6 does (Zhang et al., Dive into Deep
 * Learning, section 11.3); in a model with sinks its weights and heads are 0. Dropout is
 * the identity.
 *
 * Results agree with float64 to 1e-5 of the largest output while scores stay below about
 * 100 in magnitude. With bf16 a score is off by about 1/256 of `scale` * sum |q||k|,
 * before softcap and bias, and an output by about 1/256 of the magnitudes that it is
 * summed from. So results mostly agree to 2e-2 while the former stay below about 10, and
 * to less where columns cancel.
 *
 * `sizes` is what attn_plan() returned for this model and request, in which only queries,
 * keys and values may have changed since. `scratch` is sizes->scratch_bytes of
 * uninitialised memory at ATTN_ALIGNMENT; the caller may reuse or free it afterwards.
 * Thread-safe for distinct scratch and results; does not allocate, lock or print. Cannot
 * fail. attn_init() must have succeeded. */
ATTN_API void attn_run(const attn_model *model, const attn_request *request,
                       const attn_sizes *sizes, void *scratch, const attn_result *result);

#ifdef __cplusplus
}
#endif

#endif
