/* SPDX-License-Identifier: Apache-2.0 */
/* model.h: one multi-head attention layer. It is loaded from a safetensors file,
 * prepared, and then immutable: any number of threads may use it.
 *
 * H heads of head size D; linear weights are [out, in], y = x W^T + b. */
#ifndef ATTND_MODEL_H
#define ATTND_MODEL_H

#include <attnd/status.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum attn_scoring {
    ATTN_SCALED_DOT_PRODUCT, /* q k^T / sqrt(size) (Vaswani et al. 2017, section 3.2.1) */
    ATTN_ADDITIVE            /* w_v^T tanh(W_q q + W_k k) (Bahdanau et al. 2014, A.1.2) */
} attn_scoring;

typedef enum attn_norm {
    ATTN_NORM_NONE,
    ATTN_NORM_LAYER, /* (x - mean) / sqrt(variance + eps) * w + b (Ba et al. 2016) */
    ATTN_NORM_RMS    /* x / sqrt(mean of squares + eps) * w (Zhang and Sennrich 2019) */
} attn_norm;

/* What is added to a score by the positions of key and query. */
typedef enum attn_bias {
    ATTN_BIAS_NONE,
    ATTN_BIAS_ALIBI,   /* a slope of the head times the distance (Press et al. 2022) */
    ATTN_BIAS_BUCKETS, /* a number of the head and the distance (Raffel et al. 2020) */
    /* The slope times the position, rounded to bfloat16 as both factors are: that of the
     * key less that of the query, times the scale of scores */
    ATTN_BIAS_ALIBI_ROUNDED,
    /* The query times a positional key, and the key times a positional query, which the
     * head has for the distance, times the scale of scores (He et al. 2021) */
    ATTN_BIAS_CONTENT
} attn_bias;

/* The linear maps of a layer, which make queries, keys, values and outputs, the gate, and
 * latent rows. */
typedef enum attn_linear {
    ATTN_QUERY,
    ATTN_KEY,
    ATTN_VALUE,
    ATTN_OUTPUT,
    ATTN_GATE,
    ATTN_LATENT_QUERY,
    ATTN_LATENT_KEY
} attn_linear;

#define ATTN_NUM_LINEARS 7

#define ATTN_NAME_MAX        64  /* bytes of a model's name, without the terminator */
#define ATTN_TENSOR_NAME_MAX 127 /* bytes of a tensor's name, without the terminator */

#ifdef __cplusplus
extern "C" {
#endif

/* The description of a model, divided by subject. Its texts are constants. */
typedef struct attn_model_info {
    char name[ATTN_NAME_MAX + 1];
    struct {
        const char *name;      /* what computes the projections: "native"; or "openblas",
                                * in a build without it "plain" */
        const char *cpu;       /* instruction set of the kernels: "avx512", "avx2", ... */
        const char *precision; /* "f32" or "bf16": of the factors of products */
        double difference;     /* see attn_engine_options.serve_only; else 0 */
    } engine;

    const char *layout; /* "d2l", "torch", ...; of a checkpoint's folder, its family */
    /* Of a layer of a checkpoint's folder; NULL, and 0, of others. */
    /* "self"; or "cross" or "borrowed": keys come from elsewhere, from another model or
     * from what an earlier layer of this one projects. */
    const char *kind;
    size_t layer; /* its index in its stack */

    size_t num_heads; /* H */
    /* Query head h attends with key head h * num_kv_heads / H (Ainslie et al. 2023);
     * 0 stands for H. The key and value weights have rows for num_kv_heads heads. */
    size_t num_kv_heads;
    size_t context_length; /* tokens that a sequence may have; 0: no limit */

    struct {
        size_t query;    /* of a row of queries */
        size_t key;      /* of a row of keys */
        size_t value;    /* of a row of values */
        size_t out;      /* of a row of outputs */
        size_t head;     /* D, of a head's values and outputs; in dot_product.h Dv */
        size_t score;    /* of a head's queries and keys; 0 stands for D */
        size_t additive; /* of W_q q + W_k k; 0 for scaled dot product */
    } width;

    /* By attn_linear. Without an output weight the heads' outputs, concatenated, are the
     * outputs. With a gate they are multiplied by sigmoid(W_g x + b_g) of the query's row
     * x, number by number, before the output projection (Qiu et al. 2025). The other
     * weights follow from the sizes. */
    struct {
        bool weight, bias;
    } linears[ATTN_NUM_LINEARS];

    struct {
        double clip; /* projected numbers are clamped to -clip..clip; 0: they are not */
        bool clip_last; /* queries and keys are clamped after the norms of heads */
        bool given;     /* nothing is projected, see dot_product.h */
    } projection;

    /* Latent rows (DeepSeek-V2, 2024): one more linear map and an RMS norm before the
     * projection of queries, and before those of keys and values, whose rows are then
     * projected from narrower ones. */
    struct {
        size_t query;  /* numbers of a latent row that queries are made of; 0: no such */
        size_t key;    /* of one that keys and values are made of; 0: no such */
        size_t shared; /* the last numbers of the latter, which are not normed */
        double eps;
    } latent;

    /* Of projected queries and keys, before they are rotated. */
    struct {
        attn_norm kind;
        bool whole;    /* over all heads of a row together, not in each head */
        bool per_head; /* each head has weights of its own; not with `whole` */
        bool last;     /* after the rotation instead; not with `whole` */
        bool bias;
        double eps;
    } head_norm;

    /* Of projected values, in each head, without weights. */
    struct {
        attn_norm kind;
        double eps;
    } value_norm;

    /* Of the heads' outputs, all heads of a row together, before the output projection
     * and behind a gate: an RMS norm, or none. It has no bias. */
    struct {
        attn_norm kind;
        double eps;
    } out_norm;

    /* Rotary positions (Su et al. 2021). */
    struct {
        size_t size;      /* the first numbers of a head that are rotated; 0: none */
        const char *type; /* how frequencies are scaled: "default", "linear", ... */
        double base;
        size_t axes; /* of a position: 3 with sections of pairs, else 1; 0 stands for 1 */
        /* Positions from grid_first on are patches of an image, row after row, `grid` in
         * each; those before are not rotated. 0: positions are not of patches. */
        size_t grid, grid_first;
        bool values; /* values are rotated too, to the positions of their keys; their
                        pairs are neighbours, since heads are returned as they are */
    } rotation;

    /* Queries at position i are multiplied by 1 + beta ln(1 + floor((i + offset) /
     * length)) after the rotation (Llama 4, 2025); length 0: they are not. */
    struct attn_query_factor {
        double beta;
        size_t length, offset;
    } query_factor;

    struct {
        attn_scoring kind;
        double scale;   /* of q k^T; 0 stands for 1/sqrt(width.score) */
        double softcap; /* c of c tanh(s/c), on scaled scores (Gemma 2, 2024); 0: none */
        attn_bias bias;
        size_t bias_distance; /* of tables: farther keys have the bias at this one */
        size_t position_rows; /* of content: positional keys, or queries, of each head */
        bool position_keys, position_queries; /* of content: which of them there are */
        bool sinks; /* each head has a score without a key in its softmax */
    } score;

    /* The defaults for requests that do not set them; no protocol sets `chunk`. */
    struct {
        bool causal;
        /* Keys that a query attends to: with a causal mask the last `window` up to its
         * own position, without one those at most `window` away. 0: all. */
        size_t window;
        /* Positions are divided into chunks of so many, from 0 on; a query attends to
         * keys of its own chunk only (Llama 4, 2025). 0: they are not. */
        size_t chunk;
    } mask;

    /* The norm before the layer, of queries, and of keys and values too where kind is
     * "self". */
    struct {
        attn_norm kind;
        bool applied; /* false: the client has applied it */
        bool known;   /* its numbers are in the files, or it has none */
        bool bias;
        double eps;
        char name[ATTN_TENSOR_NAME_MAX + 1]; /* of its weight; "": none */
    } pre_norm;

    /* 128 bits of the weights as they were stored and of the options that change what is
     * computed, in hexadecimal: the same on every CPU, but not cryptographic. "", and 0,
     * of what was described and not made. */
    char fingerprint[33];
    long long loaded; /* when the weights had been read, in seconds since 1970 */

    struct {
        size_t parameters; /* numbers that it computes with, or checks rows by */
        size_t bytes;      /* of the parameters as float32 */
        size_t memory;     /* bytes that the model holds now */
    } footprint;
} attn_model_info;

typedef struct attn_model attn_model;

/* Options that complete or override what a file states. Where an option is
 * zero-initialised, the file's __metadata__ decides, and then the layout's default. All
 * memory is borrowed for the call. */
typedef struct attn_model_options {
    size_t num_heads;      /* 0: not set */
    size_t context_length; /* 0: not set */
    const char *causal;    /* "true" or "false"; NULL: not set */
    const char *layout;    /* a layout's name; NULL: recognise it */
    const char *prefix; /* what the tensors' names begin with, e.g. "trf_blocks.0.att." */
    double rope_theta;  /* base of rotary positions; 0: not set */
    /* "true": rotated pairs are neighbours; "false" or NULL: half a head apart. */
    const char *rope_interleaved;
    double eps; /* of the norms of queries and keys; 0: not set */
    /* Names of tensors behind the prefix, with or without ".weight", where no layout has
     * them: the weights of queries, keys and values, or of all three in this order, and
     * of the output, which may be missing. Any other tensor under the prefix is refused,
     * but for biases, which are called as the weights are. NULL: not set. */
    const char *q, *k, *v, *qkv, *o;
    const char *transposed; /* "true": weights so named are [in, out] */
} attn_model_options;

/* The engine, kernels and precision of a model. NULL means the first of the words that
 * are listed for a member. All memory is borrowed for the call. */
typedef struct attn_engine_options {
    /* "auto", "native", "openblas". The native engine multiplies by weights that are
     * packed at load, with kernels of the library; openblas calls cblas. "auto" is native
     * where the CPU has fast kernels. A build without OpenBLAS refuses "openblas"; it has
     * "plain" in its place, slow loops, and "auto" is always native. */
    const char *engine;
    /* "auto", "amx", "avx512", "avx2", "neon", "portable": instruction set of the
     * kernels. "amx" computes float32 by "avx512" where the operating system refuses
     * matrix tiles, and for models whose weights three bfloat16 do not hold. */
    const char *cpu;
    /* "f32", "bf16". With bf16 the factors of every product, weights too, are rounded to
     * bfloat16 (8 bits of mantissa); sums, softmax, inputs and outputs are float32. */
    const char *precision;
    /* Load a model that serves requests and nothing else. A native engine is compared
     * with OpenBLAS, or plain, on a small request; info.engine.difference is the largest
     * difference of the outputs, relative to the largest output, or, with bf16, to the
     * largest sum of magnitudes that an output is summed from. When it exceeds the
     * tolerance of the precision, the model gets engine "openblas", or "plain", and
     * "f32". The weights as they were loaded are released while the native engine packs
     * its own, so that both together never need much more memory than the weights in
     * float32. The engine cannot be replaced afterwards. attn_init() must have
     * succeeded. */
    bool serve_only;
} attn_engine_options;

/* How much the outputs of two engines may differ, relative to the largest output. With
 * bf16 those of a layer whose columns cancel may differ by more, see attn_run(). */
#define ATTN_TOLERANCE_F32  1e-5
#define ATTN_TOLERANCE_BF16 2e-2

/* Reads the layer called `name` from the safetensors file at `path`, and prepares its
 * weights for the engine. `options` and `engine` may be NULL: as if zero-initialised.
 *
 * Weights may be F32, F16, BF16 or F64, and become float32. The file is read, not mapped,
 * and is closed on return. The caller owns *ret_model, and releases it by
 * attn_model_destroy(). Thread-safe, after attn_init().
 *
 * Errors, with one line in ret_error (which may be NULL) that names the file, the tensor
 * and the remedy, and *ret_model untouched: ATTN_E_IO, ATTN_E_FORMAT, ATTN_E_SHAPE,
 * ATTN_E_VALUE, ATTN_E_UNSUPPORTED, ATTN_E_OVERFLOW, ATTN_E_NOMEM. */
ATTN_API attn_status attn_model_load(const char *name, const char *path,
                                     const attn_model_options *options,
                                     const attn_engine_options *engine,
                                     attn_model **ret_model, attn_error *ret_error);

/* Creates the built-in model called `name`: "journey" (3 wide, 2 heads of size 1, causal,
 * context length 6), "d2l" (100 wide, 5 heads), "patterns" (32 wide, 8 heads of size 16,
 * context length 16; see docs/heads.md) or "stacked" (as "journey", but of size 2 and
 * without an output projection). Any other name is ATTN_E_VALUE; otherwise as
 * attn_model_load(). */
ATTN_API attn_status attn_model_demo(const char *name, const attn_engine_options *engine,
                                     attn_model **ret_model, attn_error *ret_error);

/* Replaces the engine of a model. `options` may be NULL: as if zero-initialised;
 * serve_only is ignored. No other thread may use the model meanwhile.
 *
 * Errors, with one line in ret_error (which may be NULL) and the model as it was:
 * ATTN_E_VALUE for an unknown word, ATTN_E_UNSUPPORTED for kernels that this build or CPU
 * lacks or for a model that was loaded with serve_only, ATTN_E_OVERFLOW, ATTN_E_NOMEM. */
ATTN_API attn_status attn_model_set_engine(attn_model *model,
                                           const attn_engine_options *options,
                                           attn_error *ret_error);

/* Releases the model; accepts NULL. No other thread may use it any more. */
ATTN_API void attn_model_destroy(attn_model *model);

/* Returns the description of a model. The model owns it, for as long as it exists.
 * Thread-safe. */
ATTN_API const attn_model_info *attn_model_get_info(const attn_model *model);

#ifdef __cplusplus
}
#endif

#endif
