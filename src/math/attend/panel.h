/* SPDX-License-Identifier: Apache-2.0 */
/* panel.h: the attention of one panel of queries. A sequence of more than
 * KERNEL_PIECE_KEYS keys is summed in pieces, which are merged in their order. So threads
 * do not decide the order of a sum, nor do other queries, but for plan_is_direct(). */
#ifndef ATTND_MATH_ATTEND_PANEL_H
#define ATTND_MATH_ATTEND_PANEL_H

#include "math/attend/items.h"

/* One panel of queries of a sequence, and what each of them attends to. In a direct
 * sequence the rows of a panel are queries of several heads. */
struct panel_work {
    const struct run *run;
    const struct kernels *kernels; /* direct sequences are computed in float32 */
    struct sequence_position at;
    size_t panel; /* of the sequence */
    size_t piece; /* of its keys; 0 unless pieces are items */
    size_t thread;
    size_t num_queries;
    size_t num_keys[KERNEL_COLUMNS_MAX]; /* 1..Tk */
    bool uniform[KERNEL_COLUMNS_MAX];    /* attends to all its num_keys alike */
    bool weighs;                         /* any of the weights of a head are wanted */
    /* Where the weights of a head go, [Tk] each; NULL where they are not wanted. */
    float *weights[KERNEL_COLUMNS_MAX];
};

/* Keys and values of one head of one sequence. */
struct head_rows {
    const float *keys, *values;
    size_t keys_ld, values_ld; /* from one row of words to the next */
    bool keys_in_panels;       /* see struct query_panel */
};

/* Prepares a panel for a thread: which keys its queries attend to. */
void panel_init(struct panel_work *work, const struct run *run,
                const struct sequence_position *at, size_t panel, size_t thread);

/* Attends in one head, or in those of the rows of a direct sequence, whose `head` is then
 * 0. Writes the outputs, the weights that are wanted of it, and
 * its sums where run->panel_sums is set. */
void panel_attend(struct panel_work *work, size_t head, const struct head_rows *rows);

/* Attends in all heads, and adds up the mean of their weights in the order of the heads.
 * In a direct sequence it does all panels. */
void panel_attend_mean(struct panel_work *work);

/* Returns keys and values of a head where the projections wrote them; of a direct
 * sequence those of the request. */
struct head_rows panel_head_rows(const struct run *run,
                                 const struct sequence_position *at, size_t head);

/* Returns what is behind a thread's scratch for kernels and pieces. */
float *panel_thread_extra(const struct run *run, size_t thread);

/* Attends in one head to the piece of the keys that `work` is at. The result goes to
 * `partials`, which has room for plan->partial_floats of each piece of the panel. Weights
 * are written, but are relative to those of the piece. */
void panel_attend_piece(struct panel_work *work, size_t head,
                        const struct head_rows *rows, float *partials);

/* Does the rest of panel_attend(), when every piece was attended to. */
void panel_merge(struct panel_work *work, size_t head, float *partials);

#endif
