/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: the attention, divided into panels of queries of each head. Heads are
 * addressed by leading dimension. */
#include "math/attend/attend.h"

#include "math/attend/panel.h"
#include "math/mask.h"
#include "math/plan/rules.h"

#include <string.h>

#define GATHER_PANELS 4 /* fewer panels read a head's rows too seldom to repay a copy */

static struct plan_items items_of(const struct run *run, size_t sequence) {
    return plan_items(run->plan, run->model, run->request, sequence);
}

static size_t count_attend_items(const struct run *run, size_t sequence) {
    const struct plan_items items = items_of(run, sequence);
    return items.heads * items.panels * items.chunks;
}

/* Copies rows next to each other; returns where they end. */
static float *copy_rows(const float *from, size_t from_ld, size_t rows, size_t width,
                        float *to) {
    for (size_t r = 0; r < rows; r++, from += from_ld, to += width)
        memcpy(to, from, width * sizeof *to);
    return to;
}

/* Copies keys in panels, without what is between them. */
static float *copy_panels(const struct head_rows *rows, size_t key_len, size_t width,
                          float *to) {
    size_t whole = key_len / KEY_BLOCK, rest = key_len % KEY_BLOCK;

    to = copy_rows(rows->keys, KEY_BLOCK * rows->keys_ld, whole, KEY_BLOCK * width, to);
    return copy_rows(rows->keys + whole * KEY_BLOCK * rows->keys_ld, 0, 1, rest * width,
                     to);
}

/* Gathers a head's strided rows in the thread's scratch when enough panels will read
 * them. Caches and their prefetchers do badly with rows that are a power of two apart. */
static struct head_rows gather_rows(const struct run *run,
                                    const struct sequence_position *at, size_t head,
                                    size_t panels, size_t thread) {
    const struct engine *engine = &run->model->engine;
    struct head_rows rows = work_head_rows(run, at, head);
    size_t key_len = run->request->key_lens[at->sequence];
    size_t k_step = engine->kernels->k_step, head_size = run->model->info.head_size;
    size_t key_width = engine->score_size; /* in words */

    if (panels < GATHER_PANELS || key_len > run->plan->gather_keys || at->direct ||
        ranges_find(run->summed_keys, at->grouped ? head : head / run->plan->group) ==
            SIZE_MAX)
        return rows;
    if (engine->additive_score == NULL)
        key_width = (engine->score_size + k_step - 1) / k_step;
    float *keys = panel_thread_extra(run, thread);
    float *values = rows.keys_in_panels
                        ? copy_panels(&rows, key_len, key_width, keys)
                        : copy_rows(rows.keys, rows.keys_ld, key_len, key_width, keys);
    copy_rows(rows.values, rows.values_ld, (key_len + k_step - 1) / k_step, head_size,
              values);
    return (struct head_rows){keys, values, key_width, head_size, rows.keys_in_panels};
}

/* Returns where the results of the chunks of an item's panel begin. */
static float *panel_partials(const struct run *run, const struct panel_work *work,
                             size_t item) {
    size_t index = run->first_items[work->at.sequence] + item - work->chunk;
    return run->partials + index * run->plan->partial_floats;
}

/* An item is a panel in one head or group of heads, or in all heads when the mean of
 * their weights is wanted; or one chunk of the keys of such a panel. */
static void attend_items(const struct run *run, const struct sequence_position *at,
                         struct range items, size_t thread) {
    const struct plan_items all = items_of(run, at->sequence);
    size_t head_items = all.panels * all.chunks, item = items.first;
    struct mask mask;

    mask_init(&mask, run->request, at->sequence, at->first_query, at->first_key);
    while (item < items.end) {
        /* As many items of this head as are left. */
        size_t head = item / head_items, end = (head + 1) * head_items;
        end = end < items.end ? end : items.end;
        struct head_rows rows =
            gather_rows(run, at, head, (end - item) / all.chunks, thread);
        for (; item < end; item++) {
            struct panel_work work;
            work_init(&work, run, at, &mask, head, item / all.chunks % all.panels,
                      thread);
            work.chunk = item % all.chunks;
            if (run->request->need_weights == ATTN_WEIGHTS_MEAN)
                panel_attend_mean(&work);
            else if (all.chunks > 1)
                panel_attend_chunk(&work, head, &rows, panel_partials(run, &work, item));
            else
                panel_attend(&work, head, &rows);
        }
    }
}

/* Merges the chunks of a panel, at its first item. */
static void merge_items(const struct run *run, const struct sequence_position *at,
                        struct range items, size_t thread) {
    const struct plan_items all = items_of(run, at->sequence);
    struct mask mask;

    mask_init(&mask, run->request, at->sequence, at->first_query, at->first_key);
    for (size_t item = items.first; item < items.end; item++) {
        size_t head = item / all.chunks / all.panels;
        struct panel_work work;
        if (all.chunks == 1 || item % all.chunks > 0)
            continue;
        work_init(&work, run, at, &mask, head, item / all.chunks % all.panels, thread);
        panel_merge(&work, head, panel_partials(run, &work, item));
    }
}

/* --- conversion to bfloat16 --- */

static size_t count_conversions(const struct run *run, size_t sequence) {
    bool direct = plan_is_direct(run->plan, run->model, run->request, sequence);
    return direct ? 0 : run->model->info.num_kv_heads;
}

/* Converts projected keys and values of some key heads, in place. */
static void convert_items(const struct run *run, const struct sequence_position *at,
                          struct range heads, size_t thread) {
    const attn_model_info *info = &run->model->info;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t rows = run->request->key_lens[at->sequence];
    size_t values_from_ld = plan->by_head ? info->head_size : plan->value_width;

    (void)thread;
    for (size_t head = heads.first; head < heads.end; head++) {
        const struct head_rows to =
            work_head_rows(run, at, at->grouped ? head : head * plan->group);
        float *keys = run->keys + (to.keys - run->keys);
        float *values = run->values + (to.values - run->values);

        if (engine->additive_score == NULL && !plan->key_panels &&
            ranges_find(run->key_heads, head) != SIZE_MAX)
            engine->kernels->convert_bf16(keys, plan->key_width, rows, engine->score_size,
                                          keys, to.keys_ld);
        if (ranges_find(run->summed_keys, head) != SIZE_MAX)
            engine->kernels->pack_pairs_bf16(values, values_from_ld, rows,
                                             info->head_size, values, to.values_ld);
    }
}

void run_attend(const struct run *run) {
    const struct plan *plan = run->plan;

    if (run->model->engine.kernels->convert_bf16 != NULL)
        run_items(run,
                  RUN_CONVERT_FLOPS * 2.0 * (double)plan->projected_keys *
                      (double)plan->value_width,
                  count_conversions, convert_items);
    run_items(run, plan->attend_flops, count_attend_items, attend_items);
    if (plan->splits)
        run_items(run, plan->merge_flops, count_attend_items, merge_items);
}
