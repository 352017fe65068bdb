/* SPDX-License-Identifier: Apache-2.0 */
/* dot_product.h: scaled dot-product attention of queries, keys and values that another
 * program has computed: a layer without weights.
 *
 * H heads of queries and KV heads of keys and values lie side by side in each row. Query
 * head h attends with key head h * KV / H. Keys have head size D; values have Dv, which
 * may differ. The outputs of the heads, side by side, are the outputs:
 *
 *     attn_dot_product options = {.num_heads = 32, .num_kv_heads = 8, .head_size = 128,
 *                                 .scale = 1 / sqrt(128)};
 *     attn_request request = {.num_sequences = 1, .query_lens = &tq, .key_lens = &tk,
 *                             .queries = queries, .keys = keys, .values = values,
 *                             .causal = true};
 *     attn_sizes sizes;
 *     if (attn_dot_product_plan(&options, &request, &sizes, &error) != ATTN_OK) ...
 *     result.outputs = malloc(sizes.outputs * sizeof(float));
 *     scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
 *     attn_dot_product_run(&options, &request, &sizes, scratch, &result);
 *
 * With num_heads 1 it is DotProductAttention of Zhang et al., Dive into Deep Learning,
 * section 11.3.3; with causal and positions left out, scaled_dot_product_attention of
 * PyTorch, whose tensors [B, H, T, D] are transposed to [B, T, H, D]. */
#ifndef ATTND_DOT_PRODUCT_H
#define ATTND_DOT_PRODUCT_H

#include <attnd/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The most that a scale, of either sign, and a softcap can be. */
#define ATTN_SCALE_MAX 3e38

/* All memory is borrowed and only read. */
typedef struct attn_dot_product {
    size_t num_heads;    /* H */
    size_t num_kv_heads; /* KV, which divides H; 0: H */
    size_t head_size;    /* D */
    size_t value_size;   /* Dv; 0: D */
    double scale;        /* of q k^T, as it is; usually 1/sqrt(D) */
    double softcap;      /* c of c tanh(s/c), on scaled scores; 0: none */
    const float *sinks;  /* [H]: a score without a key in each head's softmax; or NULL */
    /* [H]: of each head, times key position - query position, is added to its scores
     * (ALiBi, Press et al. 2022); or NULL */
    const float *slopes;
    const char *cpu; /* instruction set, as in attn_engine_options; NULL: the fastest */
} attn_dot_product;

/* As attn_plan(), with queries [sum of Tq, H*D], keys [sum of Tk, KV*D], values [sum of
 * Tk, KV*Dv], and outputs and heads of [sum of Tq, H*Dv]. Values may be NULL where
 * neither outputs nor heads are wanted.
 *
 * More errors: ATTN_E_SHAPE for a size of 0, or when KV does not divide H; ATTN_E_VALUE
 * for a scale or softcap out of range, missing values, or an unknown type of keys;
 * ATTN_E_UNSUPPORTED for kernels that this build or CPU lacks. */
ATTN_API attn_status attn_dot_product_plan(const attn_dot_product *options,
                                           const attn_request *request,
                                           attn_sizes *ret_sizes, attn_error *ret_error);

/* As attn_run(). Queries are read where they are. With more than a few of them, keys and
 * values of the heads that take part are copied, some key heads at a time; encoded keys
 * are always, and become float32. attn_init() need not have been
 * called. */
ATTN_API void attn_dot_product_run(const attn_dot_product *options,
                                   const attn_request *request, const attn_sizes *sizes,
                                   void *scratch, const attn_result *result);

#ifdef __cplusplus
}
#endif

#endif
