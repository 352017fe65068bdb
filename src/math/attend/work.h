/* SPDX-License-Identifier: Apache-2.0 */
/* work.h: one panel of queries of a sequence: what each of them attends to, and what the
 * kernels read and write for it. */
#pragma once

#include "math/mask.h"
#include "math/run/run.h"

/* Where the outputs of a row go, and what they are multiplied by; 0 leaves them out. */
struct row_outputs {
    float *to;
    float factor;
};

struct panel_work;

/* How sequences of one kind differ from those of another. */
struct work_kind {
    bool projected; /* keys and values are, and converted where the kernels say so */
    bool gathers; /* queries; their outputs are not final where the kernels write them */
    /* Returns a panel with the keys and values of the heads that attend together, as they
     * were written, and with nothing else. */
    struct query_panel (*rows)(const struct run *run, const struct sequence_position *at,
                               size_t heads);
    /* Points a panel at its queries and outputs. */
    void (*describe)(const struct panel_work *work, struct query_panel *panel);
    /* Returns the constant q.b_k that direct sequences leave out of all scores of row
     * `c`. NULL: they lack nothing. */
    double (*missing_score)(const struct panel_work *work, size_t c);
};

const struct work_kind *work_find_kind(const struct sequence_position *at);

/* One panel of queries of a sequence, and what each of them attends to. Its rows are the
 * queries of all scored heads that attend together, ordered by head. */
struct panel_work {
    const struct run *run;
    const struct work_kind *kind;
    const struct kernels *kernels; /* direct sequences are computed in float32 */
    struct sequence_position at;
    size_t heads;       /* number of the heads that attend together */
    struct range range; /* these heads, whether or not they are scored */
    size_t panel;       /* of these heads */
    size_t chunk;       /* of the sequence's keys; 0 unless chunks are items */
    size_t thread;
    const struct mask *mask; /* of the sequence */
    size_t num_queries;      /* 0 when no head is scored */
    size_t row_heads[KERNEL_COLUMNS_MAX];
    size_t row_queries[KERNEL_COLUMNS_MAX]; /* counted in the sequence */
    /* The keys of each row: from first_keys on, and before end_keys. Only a row without a
     * valid key, in a model with sinks, has none. */
    size_t first_keys[KERNEL_COLUMNS_MAX], end_keys[KERNEL_COLUMNS_MAX];
    bool uniform[KERNEL_COLUMNS_MAX]; /* attends to all its keys alike */
    bool keyless[KERNEL_COLUMNS_MAX]; /* has no valid key */
    struct range keys;                /* the smallest range with the keys of all rows */
    bool weighs;                      /* any of the weights are wanted */
    /* Where they go, [Tk] each, in the result or, to be reduced, in the thread's scratch;
     * NULL where they are not wanted. */
    float *weights[KERNEL_COLUMNS_MAX];
};

/* Prepares a panel for a thread. `mask` belongs to the sequence; `heads` counts the heads
 * that attend together: heads, key heads, or 0 where all do. */
void work_init(struct panel_work *work, const struct run *run,
               const struct sequence_position *at, const struct mask *mask, size_t heads,
               size_t panel, size_t thread);

/* Finds which of the selected heads and queries row `c` is of, SIZE_MAX for one that is
 * not selected. Returns whether both are. Only with results RESULT_BY_ROW. */
bool work_find_selected(const struct panel_work *work, size_t c, size_t *ret_head,
                        size_t *ret_query);

/* Returns room for the weights of row `c` in scratch: the thread's, or that of the panel
 * where its chunks are tasks. */
float *work_weights_room(const struct panel_work *work, size_t c);

/* Describes the panel over all keys for the kernels, but for biases; `rows` has its keys
 * and values. The rows of a group are gathered in the thread's scratch, and what the
 * kernels write there is not final. */
struct query_panel work_describe(const struct panel_work *work,
                                 const struct query_panel *rows);

/* Returns where the outputs of row `c` go, of a panel that is described. */
struct row_outputs work_outputs(const struct panel_work *work,
                                const struct query_panel *panel, size_t c);
