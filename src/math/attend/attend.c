/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: the attention, divided into panels of queries of each head. The rows of all
 * sequences are contiguous; heads are addressed by leading dimension. */
#include "math/attend/panel.h"
#include "math/mask.h"

#include <string.h>

#define GATHER_PANELS 4 /* fewer panels read a head's rows too seldom to repay a copy */

static size_t sequence_weights(const struct run *run, size_t sequence) {
    const attn_request *request = run->request;

    return plan_weights_heads(&run->model->info, request) *
           plan_weights_rows(request, sequence) * request->key_lens[sequence];
}

static void next_sequence(const struct run *run, struct panel_position *at) {
    at->first_query += run->request->query_lens[at->sequence];
    at->first_key += run->request->key_lens[at->sequence];
    at->first_weight += sequence_weights(run, at->sequence);
    at->sequence++;
    at->panel = at->piece = 0;
}

/* Returns how many tasks a panel of one head is divided into, at the least. */
static size_t panel_parts(const struct run *run, size_t sequence) {
    return run->plan->splits
               ? (run->request->key_lens[sequence] - 1) / KERNEL_PIECE_KEYS + 1
               : 1;
}

/* Copies rows next to each other; returns where they end. */
static float *copy_rows(const float *from, size_t from_ld, size_t rows, size_t width,
                        float *to) {
    for (size_t r = 0; r < rows; r++, from += from_ld, to += width)
        memcpy(to, from, width * sizeof *to);
    return to;
}

/* Gathers a head's strided rows in the thread's scratch when enough panels will read
 * them. Caches and their prefetchers do badly with rows that are a power of two apart. */
static struct head_rows gather_rows(const struct run *run,
                                    const struct panel_position *at, size_t head,
                                    size_t panels, size_t thread) {
    const struct engine *engine = &run->model->engine;
    struct head_rows rows = panel_head_rows(run, at, head);
    size_t key_len = run->request->key_lens[at->sequence];
    size_t k_step = engine->kernels->k_step, head_size = run->model->info.head_size;
    size_t key_width = engine->score_size; /* in words */

    if (panels < GATHER_PANELS || key_len > run->plan->gather_keys ||
        run->plan->by_head || mask_head_factor(run->request, head) == 0.0F)
        return rows;
    if (engine->additive_score == NULL)
        key_width = (engine->score_size + k_step - 1) / k_step;
    float *keys = panel_thread_extra(run, thread);
    float *values = copy_rows(rows.keys, rows.keys_ld, key_len, key_width, keys);
    copy_rows(rows.values, rows.values_ld, (key_len + k_step - 1) / k_step, head_size,
              values);
    return (struct head_rows){keys, values, key_width, head_size};
}

/* Returns where the results of a panel's pieces are. */
static float *panel_partials(const struct run *run, const struct panel_position *at,
                             size_t head) {
    const size_t *first = run->first_parts + at->sequence;
    size_t parts = panel_parts(run, at->sequence);
    size_t index = first[0] * run->model->info.num_heads + head * (first[1] - first[0]) +
                   at->panel * parts;
    return run->partials + index * run->plan->partial_floats;
}

/* Attends with one panel in one head, or in all heads when the mean of their weights is
 * wanted; or only to one piece of the keys. */
static void attend_part(const struct run *run, const struct panel_position *at,
                        size_t head, const struct head_rows *rows, size_t thread) {
    struct panel_work work;

    panel_init(&work, run, at, thread);
    if (run->request->need_weights == ATTN_WEIGHTS_MEAN)
        panel_attend_mean(&work);
    else if (panel_parts(run, at->sequence) > 1)
        panel_attend_piece(&work, head, rows, panel_partials(run, at, head));
    else
        panel_attend(&work, head, rows);
}

/* Merges the pieces of a panel, at its first part. */
static void merge_part(const struct run *run, const struct panel_position *at,
                       size_t head, const struct head_rows *rows, size_t thread) {
    struct panel_work work;

    (void)rows;
    if (at->piece > 0 || panel_parts(run, at->sequence) == 1)
        return;
    panel_init(&work, run, at, thread);
    panel_merge(&work, head, panel_partials(run, at, head));
}

/* How the step is divided into tasks. An item is a part of a panel in one head, or for
 * convert_task() one head of one sequence. */
struct attend_tasks {
    const struct run *run;
    size_t num_heads; /* 1 when a panel does all heads itself */
    size_t num_items;
    size_t task_items; /* items in one task */
    void (*part)(const struct run *run, const struct panel_position *at, size_t head,
                 const struct head_rows *rows, size_t thread);
};

/* Divides a step of so many items and operations into tasks, and runs them. */
static void run_items(struct attend_tasks *t, size_t num_items, double flops,
                      void (*task)(void *data, size_t index, size_t thread)) {
    t->num_items = num_items;
    t->task_items = run_task_items(num_items, flops, t->run->plan->num_threads);
    run_share(t->run, flops, (num_items + t->task_items - 1) / t->task_items, task, t);
}

/* Returns the position of item `index`; items are ordered by sequence, head, panel. */
static struct panel_position find_position(const struct attend_tasks *t, size_t index,
                                           size_t *ret_head) {
    const struct run *run = t->run;
    struct panel_position at = {0};
    const size_t *first = run->first_parts;
    size_t part = index / t->num_heads, low = 0, high = run->request->num_sequences;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (first[middle] <= part)
            low = middle;
        else
            high = middle;
    }
    while (at.sequence < low)
        next_sequence(run, &at);

    size_t parts = first[low + 1] - first[low], rest = index - first[low] * t->num_heads;
    *ret_head = rest / parts;
    at.panel = rest % parts / panel_parts(run, low);
    at.piece = rest % parts % panel_parts(run, low);
    return at;
}

static void attend_task(void *data, size_t index, size_t thread) {
    const struct attend_tasks *t = data;
    const struct run *run = t->run;
    size_t item = index * t->task_items, end = item + t->task_items, head;
    struct panel_position at = find_position(t, item, &head);

    end = end < t->num_items ? end : t->num_items;
    while (item < end) {
        /* As many parts of this head as are left, in the sequence and in the task. */
        const size_t *first = run->first_parts + at.sequence;
        size_t pieces = panel_parts(run, at.sequence);
        size_t parts = first[1] - first[0] - at.panel * pieces - at.piece;
        parts = parts < end - item ? parts : end - item;
        struct head_rows rows = gather_rows(run, &at, head, parts / pieces, thread);
        for (size_t last = item + parts; item < last; item++) {
            t->part(run, &at, head, &rows, thread);
            at.piece = (at.piece + 1) % pieces;
            at.panel += at.piece == 0;
        }

        /* On to the next head, or sequence. */
        if (at.panel * pieces == first[1] - first[0]) {
            at.panel = 0;
            head++;
        }
        if (head == t->num_heads) {
            head = 0;
            next_sequence(run, &at);
        }
    }
}

/* Converts keys and values of some sequences and heads to bfloat16, in place. */
static void convert_task(void *data, size_t index, size_t thread) {
    const struct attend_tasks *t = data;
    const struct run *run = t->run;
    const attn_model_info *info = &run->model->info;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t item = index * t->task_items, end = item + t->task_items;
    struct panel_position at = {0};

    (void)thread;
    for (; item < end && item < t->num_items; item++) {
        size_t head = item % info->num_heads;
        while (at.sequence < item / info->num_heads)
            next_sequence(run, &at);

        size_t rows = run->request->key_lens[at.sequence];
        const struct head_rows to = panel_head_rows(run, &at, head);
        float *keys = run->keys + (to.keys - run->keys);
        float *values = run->values + (to.values - run->values);
        size_t keys_from_ld = plan->by_head ? engine->score_size : plan->score_width;
        size_t values_from_ld = plan->by_head ? info->head_size : plan->hidden;
        bool summed = mask_head_factor(run->request, head) != 0.0F;
        if (engine->additive_score == NULL && (summed || run_weighs_head(run, head)))
            engine->kernels->convert_bf16(keys, keys_from_ld, rows, engine->score_size,
                                          keys, to.keys_ld);
        if (summed)
            engine->kernels->pack_pairs_bf16(values, values_from_ld, rows,
                                             info->head_size, values, to.values_ld);
    }
}

static void convert_keys_and_values(const struct run *run) {
    const struct plan *plan = run->plan;
    struct attend_tasks t = {.run = run, .num_heads = run->model->info.num_heads};

    run_items(&t, run->request->num_sequences * t.num_heads,
              RUN_CONVERT_FLOPS * 2.0 * (double)plan->sizes.num_keys *
                  (double)plan->hidden,
              convert_task);
}

void run_attend(const struct run *run) {
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    size_t columns = run->model->engine.kernels->columns;
    bool mean = request->need_weights == ATTN_WEIGHTS_MEAN;
    struct attend_tasks t = {.run = run,
                             .num_heads = mean ? 1 : run->model->info.num_heads,
                             .part = attend_part};

    run->first_parts[0] = 0;
    for (size_t s = 0; s < request->num_sequences; s++)
        run->first_parts[s + 1] =
            run->first_parts[s] +
            ((request->query_lens[s] - 1) / columns + 1) * panel_parts(run, s);

    if (run->model->engine.kernels->convert_bf16 != NULL)
        convert_keys_and_values(run);
    size_t num_items = run->first_parts[request->num_sequences] * t.num_heads;
    run_items(&t, num_items, plan->attend_flops, attend_task);
    if (plan->splits) {
        t.part = merge_part;
        run_items(&t, num_items, plan->merge_flops, attend_task);
    }
}
