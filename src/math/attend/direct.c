/* SPDX-License-Identifier: Apache-2.0 */
/* direct.c: the projections of direct sequences; see plan_find_kind(). An item is some
 * queries of one head. Keys and values are two halves that do not know each other: a
 * layer that changes its keys after their projection could still sum values directly. */
#include "math/attend/attend.h"

#include "base/size.h"
#include "math/mask.h"
#include "math/run/run.h"

/* Some queries of one head of a direct sequence. */
struct direct_rows {
    size_t head, count;
    float *rows;  /* [count] of run->direct; NULL when the head is not scored */
    size_t query; /* the first of them, in the batch */
};

/* Returns how many items a head has. */
static size_t head_items(const struct run *run, size_t sequence) {
    return (run->request->query_lens[sequence] - 1) / PLAN_DIRECT_ROWS + 1;
}

static size_t count_direct(const struct run *run, size_t sequence) {
    bool direct = run->sequences[sequence].kind == SEQUENCE_DIRECT;
    return direct ? run->model->info.num_heads * head_items(run, sequence) : 0;
}

static struct direct_rows find_rows(const struct run *run,
                                    const struct sequence_position *at, size_t item) {
    size_t query_len = run->request->query_lens[at->sequence];
    size_t all = head_items(run, at->sequence), head = item / all;
    size_t first = item % all * PLAN_DIRECT_ROWS;
    size_t index = ranges_find(run->scored, head);

    return (struct direct_rows){
        .head = head,
        .count = size_min(query_len - first, PLAN_DIRECT_ROWS),
        .rows = index == SIZE_MAX
                    ? NULL
                    : run->direct + (at->first_direct + index * query_len + first) *
                                        run->plan->scratch.direct_ld,
        .query = at->first_query + first,
    };
}

/* Makes queries q of a head W_k^T q. */
static void fold_items(const struct run *run, const struct sequence_position *at,
                       struct range items, size_t thread) {
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;

    (void)thread;
    for (size_t item = items.first; item < items.end; item++) {
        const struct direct_rows d = find_rows(run, at, item);
        const struct range columns = {d.head * engine->score_size,
                                      (d.head + 1) * engine->score_size};
        if (d.rows == NULL)
            continue;
        const float *queries = run->queries + d.query * plan->layer.score_width;
        engine->kernels->project_back(&engine->linears[ATTN_KEY].panels, columns,
                                      queries + columns.first, plan->layer.score_width,
                                      d.count, d.rows, plan->scratch.direct_ld);
    }
}

void run_fold_queries(const struct run *run) {
    if (run->plan->batch.num_direct > 0)
        run_items(run, run->plan->flops.fold, count_direct, fold_items);
}

/* Projects sums of values to the head's outputs. A head can begin and end within a panel
 * of weights, so the whole panels go through the thread's scratch. */
static void project_sums(const struct run *run, const struct direct_rows *d,
                         size_t thread) {
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t head_size = run->model->info.width.head, first = d->head * head_size;
    size_t step = engine_step(engine, &engine->linears[ATTN_VALUE]),
           k_step = engine->kernels->k_step;
    size_t value_size = engine->linears[ATTN_VALUE].in;
    const struct range words = {0, (value_size + k_step - 1) / k_step};
    struct range columns = {first / step * step, first + head_size};
    float *tile = run_thread(run, thread, run->thread.sums);
    float factor = mask_head_factor(run->request, d->head);

    if (engine->kernels->convert_bf16 != NULL)
        engine->kernels->convert_bf16(d->rows, plan->scratch.direct_ld, d->count,
                                      value_size, d->rows, plan->scratch.direct_ld);
    columns.end =
        size_min((columns.end + step - 1) / step * step, engine->linears[ATTN_VALUE].out);
    size_t width = columns.end - columns.first;
    /* The tile begins with column columns.first of y. */
    engine_project(engine, &engine->linears[ATTN_VALUE], columns, &words, 1, d->rows,
                   plan->scratch.direct_ld, false, d->count, tile - columns.first, width);

    for (size_t r = 0; r < d->count; r++) {
        const float *from = tile + r * width + first - columns.first;
        float *to = run->context + (d->query + r) * plan->layer.hidden + first;
        for (size_t i = 0; i < head_size; i++)
            to[i] = from[i] * factor;
    }
}

static void sums_items(const struct run *run, const struct sequence_position *at,
                       struct range items, size_t thread) {
    for (size_t item = items.first; item < items.end; item++) {
        const struct direct_rows d = find_rows(run, at, item);
        if (mask_head_factor(run->request, d.head) != 0.0F)
            project_sums(run, &d, thread);
    }
}

void run_project_sums(const struct run *run) {
    if (run->plan->batch.num_direct > 0 && run->plan->layer.sums)
        run_items(run, run->plan->flops.sum, count_direct, sums_items);
}
