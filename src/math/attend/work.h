/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: one panel of queries of a sequence: what each of them attends to, and what the
 * kernels read and write for it. */
#ifndef ATTND_MATH_ATTEND_WORK_H
#define ATTND_MATH_ATTEND_WORK_H

#include "math/attend/items.h"
#include "math/mask.h"

/* One panel of queries of a sequence, and what each of them attends to. In a direct
 * sequence, and in one that is grouped, the rows of a panel are queries of several
 * heads. */
struct panel_work {
    const struct run *run;
    const struct kernels *kernels; /* direct sequences are computed in float32 */
    struct sequence_position at;
    size_t panel; /* of the sequence */
    size_t chunk; /* of its keys; 0 unless chunks are items */
    size_t thread;
    const struct mask *mask; /* of the sequence */
    size_t num_queries;      /* of a group that is left out: 0 */
    size_t first_index;      /* which of the scored heads the first of several is */
    /* The keys of each row: from first_keys on, and before end_keys, as the kernels call
     * it. Only a row without a valid key, in a model with sinks, has none. */
    size_t first_keys[KERNEL_COLUMNS_MAX], end_keys[KERNEL_COLUMNS_MAX];
    bool uniform[KERNEL_COLUMNS_MAX]; /* attends to all its keys alike */
    bool keyless[KERNEL_COLUMNS_MAX]; /* has no valid key */
    struct range keys;                /* the smallest range with those of all rows */
    /* Of the head that work_set_head() has set: */
    size_t head;
    bool weighs; /* any of its weights are wanted */
    /* Where they go, [Tk] each; NULL where they are not wanted. */
    float *weights[KERNEL_COLUMNS_MAX];
};

/* Keys and values of one head of one sequence. */
struct head_rows {
    const float *keys, *values;
    size_t keys_ld, values_ld; /* from one row of words to the next */
    bool keys_in_panels;       /* see struct query_panel */
};

/* Prepares a panel for a thread: which keys its queries attend to. `mask` is that of the
 * sequence; `head` is as for work_set_head(), and matters where there are several. */
void work_init(struct panel_work *work, const struct run *run,
               const struct sequence_position *at, const struct mask *mask, size_t head,
               size_t panel, size_t thread);

/* Turns to a head, which is 0 in a direct sequence, and a key head in a grouped one. */
void work_set_head(struct panel_work *work, size_t head);

/* Returns the head of row `c` of the panel: the one that is set, or where there are
 * several that of the row. */
size_t work_head(const struct panel_work *work, size_t c);

/* Returns the query of row `c` of the panel, counted in its sequence. */
size_t work_query(const struct panel_work *work, size_t c);

/* Returns keys and values of a head where the projections wrote them; of a direct
 * sequence those of the request. */
struct head_rows work_head_rows(const struct run *run, const struct sequence_position *at,
                                size_t head);

/* Describes the panel over all keys for the kernels, but for biases. The rows of a group
 * are gathered in the thread's scratch, and what the kernels write there is not final. */
struct query_panel work_describe(const struct panel_work *work,
                                 const struct head_rows *rows);

/* Where the outputs of a row go, and what they are multiplied by; 0 leaves them out. */
struct row_outputs {
    float *to;
    float factor;
};

/* Returns those of row `c` of a panel that work_describe() has described. */
struct row_outputs work_outputs(const struct panel_work *work,
                                const struct query_panel *panel, size_t c);

#endif
