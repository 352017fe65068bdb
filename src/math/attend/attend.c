/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: the attention, divided into panels of queries of each head. Heads are
 * addressed by leading dimension. */
#include "math/attend/attend.h"

#include "base/size.h"
#include "math/attend/chunks.h"
#include "math/attend/reduce.h"
#include "math/mask.h"
#include "math/plan/rules.h"
#include "math/run/pass.h"

#include <string.h>

#define STEP_FLOPS    1e8 /* of a head in one step of sums over queries, at least */
#define GATHER_PANELS 4   /* fewer panels read a head's rows too seldom to repay a copy */

/* --- one panel --- */

/* Returns whether there is nothing to compute: heads are left out, and none of their
 * weights is wanted. */
static bool is_idle(const struct panel_work *work, const struct query_panel *panel) {
    const struct run *run = work->run;
    bool sums = run->plan->layer.sums && panel->factor != 0.0F;
    if (work->num_queries == 0)
        return true;
    return !sums && !work->weighs && run->panel_sums == NULL && run->lse == NULL;
}

/* Returns where the sums of a head go. */
static attn_head_sums *find_sums(const struct panel_work *work) {
    const struct run *run = work->run;
    size_t index = run->first_items[work->at.sequence];
    return run->panel_sums + index + work->panel * run->model->info.num_heads +
           work->heads;
}

/* Attends to all keys. Writes the outputs, the scores and weights that are wanted, what
 * these are reduced to, and sums where run->panel_sums is set. */
static void attend_panel(const struct panel_work *work, const struct query_panel *rows) {
    const struct query_panel panel = work_describe(work, rows);
    attn_head_sums *sums = work->run->panel_sums != NULL ? find_sums(work) : NULL;

    if (sums != NULL)
        *sums = (attn_head_sums){0};
    if (work->run->request->reduce.scores) /* what attends may overwrite the queries */
        chunks_score(work, &panel);
    if (!is_idle(work, &panel))
        chunks_attend(work, &panel, sums);
    if (work->weighs && plan_wants(work->run->plan, RESULT_REDUCED))
        reduce_panel(work);
}

/* Attends to the chunk of the keys that `work` is at; see chunks_attend_one(). */
static void attend_panel_chunk(const struct panel_work *work,
                               const struct query_panel *rows, float *partials) {
    const struct query_panel whole = work_describe(work, rows);
    if (!is_idle(work, &whole))
        chunks_attend_one(work, &whole, partials);
}

/* Does the rest of attend_panel(), when every chunk was attended to. */
static void merge_panel(const struct panel_work *work, float *partials) {
    const struct query_panel rows = work->kind->rows(work->run, &work->at, work->heads);
    const struct query_panel whole = work_describe(work, &rows);

    if (!is_idle(work, &whole))
        chunks_merge(work, &whole, partials);
    if (work->weighs && plan_wants(work->run->plan, RESULT_REDUCED))
        reduce_panel(work);
}

/* Adds the weights `one` [key_len] of head `head` to the mean over all heads. */
static void add_to_mean(size_t head, size_t num_heads, const float *one, size_t key_len,
                        float *mean) {
    for (size_t k = 0; k < key_len; k++) {
        if (head == 0)
            mean[k] = one[k] / (float)num_heads;
        else
            mean[k] = mean[k] + one[k] / (float)num_heads;
    }
}

/* Attends, and adds the weights to the mean. The weights of each head go through the
 * thread's scratch. */
static void attend_to_mean(struct panel_work *work) {
    const struct run *run = work->run;
    const struct query_panel rows = work->kind->rows(run, &work->at, work->heads);
    size_t key_len = work->mask->key_len;
    float *means[KERNEL_COLUMNS_MAX] = {NULL};

    for (size_t c = 0; c < work->num_queries; c++) {
        means[c] = work->weights[c];
        work->weights[c] = means[c] != NULL ? work_weights_room(work, c) : NULL;
    }
    attend_panel(work, &rows);
    for (size_t c = 0; c < work->num_queries; c++) {
        if (means[c] != NULL)
            add_to_mean(work->row_heads[c], run->model->info.num_heads, work->weights[c],
                        key_len, means[c]);
    }
}

/* Attends in all heads, and adds up the mean of their weights in the order of the heads.
 * Where several heads have rows in one panel, it does all panels. */
static void attend_panel_mean(struct panel_work *work) {
    const struct run *run = work->run;
    const struct sequence_position at = work->at;
    const struct plan_items items = plan_items(run->plan, at.sequence);
    size_t columns = work->kernels->columns, panel = work->panel;
    size_t end = items.shared > 1 ? (items.rows - 1) / columns + 1 : panel + 1;

    for (size_t heads = 0; heads < run->model->info.num_heads / items.shared; heads++) {
        for (size_t p = panel; p < end; p++) {
            work_init(work, run, &at, work->mask, heads, p, work->thread);
            attend_to_mean(work);
        }
    }
}

/* --- items --- */

/* Returns which of the heads that attend together, of `count`, do so in this phase. */
static struct range find_phase_heads(const struct run *run, size_t count) {
    size_t key_heads = run->model->info.num_kv_heads;
    return (struct range){run->phase.first * count / key_heads,
                          run->phase.end * count / key_heads};
}

static size_t count_attend_items(const struct run *run, size_t sequence) {
    const struct plan_items items = plan_items(run->plan, sequence);
    const struct range heads = find_phase_heads(run, items.heads);
    size_t count = heads.end - heads.first;
    if (run->panels.end > 0)
        return items.panels > run->panels.first ? count : 0;
    return count * items.panels * items.chunks;
}

/* Copies rows next to each other; returns where they end. */
static float *copy_rows(const float *from, size_t from_ld, size_t rows, size_t width,
                        float *to) {
    for (size_t r = 0; r < rows; r++, from += from_ld, to += width)
        memcpy(to, from, width * sizeof *to);
    return to;
}

/* Copies keys in panels, without what is between them. */
static float *copy_panels(const struct query_panel *rows, size_t key_len, size_t width,
                          float *to) {
    size_t whole = key_len / KEY_BLOCK, rest = key_len % KEY_BLOCK;

    to = copy_rows(rows->keys, KEY_BLOCK * rows->keys_ld, whole, KEY_BLOCK * width, to);
    return copy_rows(rows->keys + whole * KEY_BLOCK * rows->keys_ld, 0, 1, rest * width,
                     to);
}

/* Gathers strided rows in the thread's scratch when enough panels will read them. Caches
 * and their prefetchers do badly with rows that are a power of two apart. */
static struct query_panel gather_rows(const struct run *run,
                                      const struct sequence_position *at, size_t heads,
                                      size_t panels, size_t thread) {
    const struct engine *engine = &run->model->engine;
    const struct plan_layer *layer = &run->plan->layer;
    const struct work_kind *kind = work_find_kind(at);
    struct query_panel rows = kind->rows(run, at, heads);
    size_t key_len = run->request->key_lens[at->sequence];
    size_t k_step = engine->kernels->k_step, head_size = run->model->info.width.head;
    size_t key_width = engine->score_size; /* in words */
    size_t key_head = heads * layer->shared[at->kind] / layer->group;

    if (panels < GATHER_PANELS || key_len > run->plan->scratch.gather_keys ||
        !kind->projected || ranges_find(run->summed_keys, key_head) == SIZE_MAX)
        return rows;
    if (engine->additive_score == NULL)
        key_width = (engine->score_size + k_step - 1) / k_step;
    float *keys = run_thread(run, thread, run->thread.gathered);
    float *values = rows.keys_in_panels
                        ? copy_panels(&rows, key_len, key_width, keys)
                        : copy_rows(rows.keys, rows.keys_ld, key_len, key_width, keys);
    copy_rows(rows.values, rows.values_ld, (key_len + k_step - 1) / k_step, head_size,
              values);
    rows.keys = keys;
    rows.values = values;
    rows.keys_ld = key_width;
    rows.values_ld = head_size;
    return rows;
}

/* Returns where the results of the chunks of an item's panel begin. */
static float *panel_partials(const struct run *run, const struct panel_work *work,
                             size_t item) {
    size_t index = run->first_items[work->at.sequence] + item - work->chunk;
    return run->partials + index * run->plan->scratch.partial_floats;
}

/* An item is a panel of heads that attend together, or in all heads when the mean of
 * their weights is wanted; or one chunk of the keys of such a panel. */
static void attend_items(const struct run *run, const struct sequence_position *at,
                         struct range items, size_t thread) {
    const struct plan_items all = plan_items(run->plan, at->sequence);
    size_t head_items = all.panels * all.chunks, item = items.first;
    size_t first_head = find_phase_heads(run, all.heads).first;
    struct mask mask;

    mask_init(&mask, run->request, at->sequence, at->first_query, at->first_key);
    while (item < items.end) {
        /* As many items of these heads as are left. */
        size_t head = first_head + item / head_items;
        size_t end = size_min((item / head_items + 1) * head_items, items.end);
        struct query_panel rows =
            gather_rows(run, at, head, (end - item) / all.chunks, thread);
        for (; item < end; item++) {
            struct panel_work work;
            work_init(&work, run, at, &mask, head, item / all.chunks % all.panels,
                      thread);
            work.chunk = item % all.chunks;
            if (run->request->need_weights == ATTN_WEIGHTS_MEAN)
                attend_panel_mean(&work);
            else if (all.chunks > 1)
                attend_panel_chunk(&work, &rows, panel_partials(run, &work, item));
            else
                attend_panel(&work, &rows);
        }
    }
}

/* An item is the panels of this step of heads that attend together, in their order. */
static void attend_in_order(const struct run *run, const struct sequence_position *at,
                            struct range heads, size_t thread) {
    size_t panels = plan_items(run->plan, at->sequence).panels; /* of one chunk each */

    for (size_t i = heads.first; i < heads.end; i++) {
        const struct range items = {i * panels + run->panels.first,
                                    i * panels + size_min(run->panels.end, panels)};
        attend_items(run, at, items, thread);
    }
}

/* Merges the chunks of a panel, at its first item. */
static void merge_items(const struct run *run, const struct sequence_position *at,
                        struct range items, size_t thread) {
    const struct plan_items all = plan_items(run->plan, at->sequence);
    size_t first_head = find_phase_heads(run, all.heads).first;
    struct mask mask;

    mask_init(&mask, run->request, at->sequence, at->first_query, at->first_key);
    for (size_t item = items.first; item < items.end; item++) {
        size_t head = first_head + item / all.chunks / all.panels;
        struct panel_work work;
        if (all.chunks == 1 || item % all.chunks > 0)
            continue;
        work_init(&work, run, at, &mask, head, item / all.chunks % all.panels, thread);
        merge_panel(&work, panel_partials(run, &work, item));
    }
}

/* --- steps --- */

/* Converts projected keys, in place: each head of a row is a row of its own. */
static void convert_keys(const struct run *run) {
    size_t size = run->model->engine.score_size;
    struct row_pass pass = {.from = run->keys,
                            .to = run->keys,
                            .rows = run->plan->batch.projected_keys *
                                    run->model->info.num_kv_heads,
                            .width = size,
                            .to_ld = size,
                            .kernels = run->model->engine.kernels};

    if (pass.rows > 0)
        run_pass(run, RUN_CONVERT_FLOPS, &pass);
}

/* Attends where weights add up over the queries of a head. Its panels wait for those
 * before them, so that there are as many tasks at once as heads; and as many panels are
 * a step as a task has time for. */
static void attend_in_steps(const struct run *run) {
    const struct plan *plan = run->plan;
    size_t step = 1, num_panels = 0;
    struct run part = *run;

    for (size_t s = 0; s < run->request->num_sequences; s++)
        num_panels = size_max(num_panels, plan_items(run->plan, s).panels);
    if (STEP_FLOPS > plan->batch.panel_flops * (double)num_panels)
        step = num_panels;
    else if (STEP_FLOPS > plan->batch.panel_flops)
        step = (size_t)(STEP_FLOPS / plan->batch.panel_flops);

    if (run->phase.first == 0)
        reduce_clear(&part);
    for (size_t first = 0; first < num_panels; first += step) {
        part.panels = (struct range){first, first + step};
        run_items(&part,
                  run_phase_flops(run, plan->flops.attend) * (double)step /
                      (double)num_panels,
                  count_attend_items, attend_in_order);
    }
    if (run->phase.end == run->model->info.num_kv_heads)
        reduce_finish(run);
}

/* Attends with the key heads of a phase. */
static void attend_in_phase(const struct run *run) {
    const struct plan *plan = run->plan;
    const struct engine *engine = &run->model->engine;

    /* Keys in panels, and values, were converted before they were moved. */
    if (engine->kernels->convert_bf16 != NULL && engine->additive_score == NULL &&
        !plan->layer.key_panels)
        convert_keys(run);
    if (plan_wants(plan, RESULT_SUMMED)) {
        attend_in_steps(run);
        return;
    }
    run_items(run, run_phase_flops(run, plan->flops.attend), count_attend_items,
              attend_items);
    if (plan->scratch.splits)
        run_items(run, run_phase_flops(run, plan->flops.merge), count_attend_items,
                  merge_items);
}

void run_attend(struct run *run) {
    size_t heads = run->model->info.num_kv_heads, step = run->plan->layer.phase_heads;

    for (size_t first = 0; first < heads; first += step) {
        run->phase = (struct range){first, size_min(first + step, heads)};
        if (run->model->info.projection.given)
            run_pack_keys(run);
        attend_in_phase(run);
    }
}
