/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: one panel of queries of a sequence: what each of them attends to, and what the
 * kernels read and write for it. */
#ifndef ATTND_MATH_ATTEND_WORK_H
#define ATTND_MATH_ATTEND_WORK_H

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
void work_init(struct panel_work *work, const struct run *run,
               const struct sequence_position *at, size_t panel, size_t thread);

/* Returns the head of row `c` of the panel, which is `head` but in a direct sequence. */
size_t work_head(const struct panel_work *work, size_t c, size_t head);

/* Returns the query of row `c` of the panel, counted in its sequence. */
size_t work_query(const struct panel_work *work, size_t c);

/* Finds where the weights of the panel's queries go in the result. */
void work_find_weights(struct panel_work *work, size_t head);

/* Returns keys and values of a head where the projections wrote them; of a direct
 * sequence those of the request. */
struct head_rows work_head_rows(const struct run *run, const struct sequence_position *at,
                                size_t head);

/* Describes the panel in one head, over all keys, for the kernels. */
struct query_panel work_describe(const struct panel_work *work, size_t head,
                                 const struct head_rows *rows);

#endif
