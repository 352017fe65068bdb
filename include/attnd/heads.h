/* SPDX-License-Identifier: Apache-2.0 */
/* heads.h: what each head of a layer attends to, and how much the outputs depend on it.
 *
 * A head's contribution c_h is its part of the outputs, W_o[:, h] z_h: what it summed
 * before the output projection, behind a gate or a norm, through its columns of that
 * projection. The outputs are the sum of all contributions and the bias. So leaving out
 * any set S of heads changes them by exactly the contributions of S, unless a norm of all
 * heads divides the others by less then. The squared norm of that change is
 *
 *     sum over g and h in S of gram[g][h],   gram[g][h] = <c_g, c_h> over all rows.
 *
 * One run over a batch therefore predicts the effect of every set of heads. */
#ifndef ATTND_HEADS_H
#define ATTND_HEADS_H

#include <attnd/attention.h>

#define ATTN_HEAD_TAGS_MAX 4 /* tags of one head, with the NULL behind them */

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_HEAD_REACH 16 /* tokens, of the offsets that are summed */

/* Places that a row may attend to; their weights are summed. Offset o, from -16 to 16, is
 * the key o tokens after the row's own, at ATTN_PLACE_SELF + o. Of a sequence whose keys
 * are not its queries, only the first key and separators count. */
enum attn_head_place {
    ATTN_PLACE_PREVIOUS = ATTN_HEAD_REACH - 1,
    ATTN_PLACE_SELF,
    ATTN_PLACE_NEXT,
    ATTN_PLACE_OFFSETS = 2 * ATTN_HEAD_REACH + 1, /* how many there are */
    ATTN_PLACE_FIRST = ATTN_PLACE_OFFSETS,        /* key 0 */
    ATTN_PLACE_SEPARATOR, /* the last valid key, and others than key 0 with its id */
    /* With token ids: all keys that have the row's own id, where these are more than one;
     * those before the row; and those up to the row that follow such a key. */
    ATTN_PLACE_SAME,
    ATTN_PLACE_DUPLICATE,
    ATTN_PLACE_INDUCTION,
    ATTN_HEAD_PLACES
};

/* Sums over rows of queries: what one head attends to. w[k] is the weight of row i on key
 * k: both count rows of their sequence, whatever its positions are. `prefix`, `distance`,
 * offsets and the rest of rows in sequences of which no row is a key, are 0. */
typedef struct attn_head_sums {
    double entropy;  /* -w[k] ln w[k], nats */
    double total;    /* of all w[k]; a learned sink has what is missing from 1 */
    double prefix;   /* w[0] .. w[i] */
    double distance; /* |i - k| w[k], tokens */
    double at[ATTN_HEAD_PLACES];
    /* What the first key and separators have of the last three. Then of the other keys:
     * their weights in all rows, in rows of sequences whose keys are the queries, and in
     * rows that have the place; -w[k] ln(w[k] / their sum in the row), nats; and the same
     * where each row spreads that sum evenly. */
    double marked_prefix, marked_distance, marked_at[ATTN_HEAD_PLACES];
    double rest, rest_itself, rest_rows[ATTN_HEAD_PLACES], rest_entropy, rest_even;
    double target;  /* on the row's target, of rows that have one */
    double largest; /* 1 where the row's largest weight lies in its target */
} attn_head_sums;

/* The heads of a model over one or more batches. The caller owns the arrays. With zeros
 * in them and in the members below, these are the heads over no batch. */
typedef struct attn_heads {
    size_t num_heads;
    attn_head_sums *sums; /* [H] */
    double *gram; /* [H, H], symmetric; NULL: of queries and keys without a model */
    double squared_norm;     /* of all outputs, bias included */
    double squared_residual; /* of the rows that entered, before a norm of the model; 0
                              * where they have not the width of the outputs */
    attn_head_sums even; /* of a head that weighs all allowed keys alike, sinks apart */
    size_t rows;         /* of queries */
    double row_keys;     /* keys of each row's sequence, summed over the rows */
    double rows_at[ATTN_HEAD_PLACES]; /* rows whose sequence has the place, for them */
    size_t target_rows;               /* those that have a target */
    bool sinks;                       /* whether the model has learned sinks */
} attn_heads;

/* A word for what a head does (docs/heads.md), and how much: mostly the share of weight.
 * A weak one is the strongest pattern of a head that no word fits well. */
typedef struct attn_head_tag {
    const char *name; /* a constant */
    double share;
    bool weak;
} attn_head_tag;

/* Means over the rows, and words for them. */
typedef struct attn_head {
    /* How much the outputs change when this head alone is left out: the norm of the
     * change divided by the norm of the outputs. 0 when all outputs are 0; NAN without a
     * model. */
    double importance;
    double residual_importance; /* divided by the norm of the rows instead; else NAN */
    double entropy;             /* nats */
    double mass_on_first;
    double mass_on_sink; /* on the learned sink; NAN in a model without sinks */
    /* NAN when no sequence has its queries as keys; mass_on_previous also when none of
     * those has a second row. */
    double mean_distance; /* tokens */
    double mass_on_self, mass_on_previous;
    /* Over rows with a target: the weight on it, and the share of them whose largest
     * weight lies in it; NAN without such rows. */
    double mass_on_target, target_is_largest;
    /* With a name of NULL behind the last: what the head attends to; where that is one
     * key or a sink, what it does with the rest; and "unused" when its importance, which
     * is the share, is below 0.001. The first is there from 6 keys a row on. */
    attn_head_tag tags[ATTN_HEAD_TAGS_MAX];
} attn_head;

/* As attn_plan(), for attn_heads_add(): the same checks, and the scratch that it needs.
 * need_weights and reduce have no effect, but for targets and token_ids; sizes of their
 * results and of outputs are 0. Of an id, 32 bits count. */
ATTN_API attn_status attn_heads_plan(const attn_model *model, const attn_request *request,
                                     attn_sizes *ret_sizes, attn_error *ret_error);

/* Runs the layer on a batch, and adds what its heads do to *heads. A head that head_mask
 * sets to 0 contributes nothing, but its weights count.
 *
 * `sizes` and `scratch` are as in attn_run(), but those of attn_heads_plan(). Sums are
 * made in float64 and in an order that does not depend on the threads. Thread-safe for
 * distinct scratch and heads; does not allocate, lock or print. Cannot fail. */
ATTN_API void attn_heads_add(const attn_model *model, const attn_request *request,
                             const attn_sizes *sizes, void *scratch, attn_heads *heads);

/* Returns whether all that was added is finite. It is not when an input was not, or when
 * float32 overflowed. *ret_head is the first head that is not finite, or num_heads when
 * all are, though the squares of their sum may not be. Thread-safe. */
ATTN_API bool attn_heads_are_finite(const attn_heads *heads, size_t *ret_head);

/* Describes head `head`, below num_heads, of at least one batch. Thread-safe. */
ATTN_API void attn_heads_describe(const attn_heads *heads, size_t head,
                                  attn_head *ret_head);

#ifdef __cplusplus
}
#endif

#endif
