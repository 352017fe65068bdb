/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: the attention, divided into panels of queries of each head. The rows of all
 * sequences are contiguous; heads are addressed by leading dimension. */
#include "math/mask.h"
#include "math/run.h"

#include <string.h>

#define GATHER_PANELS 4 /* fewer panels read a head's rows too seldom to repay a copy */

/* Where a panel of queries is. */
struct panel_position {
    size_t sequence;
    size_t first_query, first_key; /* of the sequence, in the batch */
    size_t panel;                  /* of the sequence */
    size_t first_weight;           /* of the sequence, in the result's weights */
};

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
    at->panel = 0;
}

/* One panel of queries, and what each of them attends to. */
struct panel_work {
    const struct run *run;
    struct panel_position at;
    size_t thread;
    size_t num_queries;
    size_t num_keys[KERNEL_COLUMNS_MAX]; /* 1..Tk */
    bool uniform[KERNEL_COLUMNS_MAX];    /* attends to all its num_keys alike */
    /* Where the weights of a head go, [Tk] each; NULL where they are not wanted. */
    float *weights[KERNEL_COLUMNS_MAX];
};

static void panel_work_init(struct panel_work *work, const struct run *run,
                            const struct panel_position *at, size_t thread) {
    const attn_request *request = run->request;
    size_t columns = run->model->engine.kernels->columns;
    size_t sequence = at->sequence, first = at->panel * columns;
    size_t left = request->query_lens[sequence] - first;

    work->run = run;
    work->at = *at;
    work->thread = thread;
    work->num_queries = left < columns ? left : columns;
    for (size_t c = 0; c < work->num_queries; c++) {
        work->num_keys[c] = mask_num_keys(request, sequence, at->first_query, first + c);
        work->uniform[c] = work->num_keys[c] == 0;
        if (work->uniform[c])
            work->num_keys[c] = request->key_lens[sequence];
    }
}

/* Keys and values of one head of one sequence. */
struct head_rows {
    const float *keys, *values;
    size_t keys_ld, values_ld; /* from one row of words to the next */
};

/* Returns the part of a thread's scratch that follows that of the kernels. */
static float *thread_extra(const struct run *run, size_t thread) {
    return run->thread_scratch + thread * run->plan->thread_floats +
           run->plan->thread_extra;
}

static struct head_rows rows_in_place(const struct run *run,
                                      const struct panel_position *at, size_t head) {
    const attn_model *model = run->model;
    const struct plan *plan = run->plan;

    return (struct head_rows){
        .keys = run->keys + at->first_key * plan->score_width +
                head * model->engine.score_size,
        .keys_ld = plan->score_width,
        .values =
            run->values + at->first_key * plan->hidden + head * model->info.head_size,
        .values_ld = model->engine.kernels->k_step * plan->hidden,
    };
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
    struct head_rows rows = rows_in_place(run, at, head);
    size_t key_len = run->request->key_lens[at->sequence];
    size_t k_step = engine->kernels->k_step, head_size = run->model->info.head_size;
    size_t key_width = engine->score_size; /* in words */

    if (panels < GATHER_PANELS || key_len > run->plan->gather_keys ||
        mask_head_factor(run->request, head) == 0.0F)
        return rows;
    if (engine->additive_score == NULL)
        key_width = (engine->score_size + k_step - 1) / k_step;
    float *keys = thread_extra(run, thread);
    float *values = copy_rows(rows.keys, rows.keys_ld, key_len, key_width, keys);
    copy_rows(rows.values, rows.values_ld, (key_len + k_step - 1) / k_step, head_size,
              values);
    return (struct head_rows){keys, values, key_width, head_size};
}

/* Adds up what the queries of a panel attend to in one head. */
static void add_panel_sums(const struct panel_work *work, const struct panel_sums *from,
                           attn_head_sums *to) {
    const struct panel_position *at = &work->at;
    bool itself = mask_keys_are_queries(work->run->request, at->sequence, at->first_query,
                                        at->first_key);

    *to = (attn_head_sums){0};
    for (size_t c = 0; c < work->num_queries; c++) {
        to->entropy += (double)from->entropy[c];
        to->first += (double)from->first[c];
        if (!itself)
            continue;
        to->self += (double)from->self[c];
        to->previous += (double)from->previous[c];
        to->next += (double)from->next[c];
        to->near += (double)from->near[c];
        to->prefix += (double)from->prefix[c];
        to->distance += (double)from->distance[c];
    }
}

/* Finds where the weights of the panel's queries go, of those in `weights` that belong to
 * one head of the sequence. Returns whether any are wanted. */
static bool find_weights(struct panel_work *work, float *weights) {
    const struct run *run = work->run;
    size_t first = work->at.panel * run->model->engine.kernels->columns;
    size_t key_len = run->request->key_lens[work->at.sequence];
    bool any = false;

    for (size_t c = 0; c < work->num_queries; c++) {
        int32_t slot = run->query_slots[first + c];
        work->weights[c] = slot >= 0 ? weights + (size_t)slot * key_len : NULL;
        any = any || slot >= 0;
    }
    return any;
}

/* Attends in one head. Writes the panel's outputs and, unless `weights` is NULL, the
 * weights of the queries that have a row there. */
static void attend_head(const struct panel_work *work, size_t head,
                        const struct head_rows *rows, float *const *weights) {
    const struct run *run = work->run;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t head_size = run->model->info.head_size;
    size_t row = work->at.first_query + work->at.panel * engine->kernels->columns;
    float factor = mask_head_factor(run->request, head);
    float *outputs = run->context + row * plan->hidden + head * head_size;
    bool sums_up = run->panel_sums != NULL;
    struct panel_sums sums;
    const struct query_panel panel = {
        .queries = run->queries + row * plan->score_width + head * engine->score_size,
        .queries_ld = plan->score_width,
        .num_queries = work->num_queries,
        .keys = rows->keys,
        .keys_ld = rows->keys_ld,
        .values = rows->values,
        .values_ld = rows->values_ld,
        .key_len = run->request->key_lens[work->at.sequence],
        .num_keys = work->num_keys,
        .uniform = work->uniform,
        .additive_score = engine->additive_score,
        .score_size = engine->score_size,
        .head_size = factor != 0.0F ? head_size : 0,
        .factor = factor,
        .outputs = outputs,
        .outputs_ld = plan->hidden,
        .weights = weights,
        .position = work->at.panel * engine->kernels->columns,
        .sums = sums_up ? &sums : NULL,
        .scratch = run->thread_scratch + work->thread * plan->thread_floats,
    };

    if (factor != 0.0F || weights != NULL || sums_up)
        engine->kernels->attend(&panel);
    if (sums_up) {
        size_t index = run->first_panels[work->at.sequence] + work->at.panel;
        add_panel_sums(work, &sums,
                       run->panel_sums + index * run->model->info.num_heads + head);
    }

    /* The outputs of a head that is left out are 0. Its values were not projected. */
    for (size_t c = 0; factor == 0.0F && c < work->num_queries; c++)
        memset(outputs + c * plan->hidden, 0, head_size * sizeof *outputs);
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

/* Attends in all heads, and adds up the mean of their weights in the order of the heads.
 * The weights of each head go through the thread's scratch. */
static void attend_mean(struct panel_work *work) {
    const struct run *run = work->run;
    size_t num_heads = run->model->info.num_heads;
    size_t key_len = run->request->key_lens[work->at.sequence];
    bool any = find_weights(work, run->weights + work->at.first_weight);
    float *one = thread_extra(run, work->thread), *ones[KERNEL_COLUMNS_MAX];

    for (size_t c = 0; c < work->num_queries; c++)
        ones[c] = work->weights[c] != NULL ? one + c * key_len : NULL;
    for (size_t h = 0; h < num_heads; h++) {
        struct head_rows rows = rows_in_place(run, &work->at, h);
        attend_head(work, h, &rows, any ? ones : NULL);
        for (size_t c = 0; c < work->num_queries; c++) {
            if (ones[c] != NULL)
                add_to_mean(h, num_heads, ones[c], key_len, work->weights[c]);
        }
    }
}

/* Attends with one panel in one head, or in all heads when the mean of their weights is
 * wanted. */
static void attend_panel(const struct run *run, const struct panel_position *at,
                         size_t head, const struct head_rows *rows, size_t thread) {
    struct panel_work work;
    bool any = false;

    panel_work_init(&work, run, at, thread);
    if (run->request->need_weights == ATTN_WEIGHTS_MEAN) {
        attend_mean(&work);
        return;
    }
    if (run->weights != NULL && run->head_slots[head] >= 0) {
        size_t row =
            (size_t)run->head_slots[head] * plan_weights_rows(run->request, at->sequence);
        any = find_weights(&work, run->weights + at->first_weight +
                                      row * run->request->key_lens[at->sequence]);
    }
    attend_head(&work, head, rows, any ? work.weights : NULL);
}

/* How the step is divided into tasks. An item is what attend_panel() does, or what
 * convert_task() does for one head of one sequence. */
struct attend_tasks {
    const struct run *run;
    size_t num_heads; /* 1 when a panel does all heads itself */
    size_t num_items;
    size_t task_items; /* items in one task */
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
    const size_t *first = run->first_panels;
    size_t panel = index / t->num_heads, low = 0, high = run->request->num_sequences;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (first[middle] <= panel)
            low = middle;
        else
            high = middle;
    }
    while (at.sequence < low)
        next_sequence(run, &at);

    size_t panels = first[low + 1] - first[low], rest = index - first[low] * t->num_heads;
    *ret_head = rest / panels;
    at.panel = rest % panels;
    return at;
}

static void attend_task(void *data, size_t index, size_t thread) {
    const struct attend_tasks *t = data;
    const struct run *run = t->run;
    size_t item = index * t->task_items, end = item + t->task_items, head;
    struct panel_position at = find_position(t, item, &head);

    end = end < t->num_items ? end : t->num_items;
    while (item < end) {
        /* As many panels of this head as are left, in the sequence and in the task. */
        const size_t *first = run->first_panels + at.sequence;
        size_t panels = first[1] - first[0] - at.panel;
        panels = panels < end - item ? panels : end - item;
        struct head_rows rows = gather_rows(run, &at, head, panels, thread);
        for (size_t last = item + panels; item < last; item++, at.panel++)
            attend_panel(run, &at, head, &rows, thread);

        /* On to the next head, or sequence. */
        if (at.panel == first[1] - first[0]) {
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

        float *keys = run->keys + at.first_key * plan->score_width;
        float *values = run->values + at.first_key * plan->hidden;
        size_t rows = run->request->key_lens[at.sequence];
        keys += head * engine->score_size;
        values += head * info->head_size;
        bool summed = mask_head_factor(run->request, head) != 0.0F;
        if (engine->additive_score == NULL &&
            (summed || run->weights != NULL || run->panel_sums != NULL))
            engine->kernels->convert_bf16(keys, plan->score_width, rows,
                                          engine->score_size, keys, plan->score_width);
        if (summed)
            engine->kernels->pack_pairs_bf16(values, plan->hidden, rows, info->head_size,
                                             values, 2 * plan->hidden);
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
                             .num_heads = mean ? 1 : run->model->info.num_heads};

    run->first_panels[0] = 0;
    for (size_t s = 0; s < request->num_sequences; s++)
        run->first_panels[s + 1] =
            run->first_panels[s] + (request->query_lens[s] - 1) / columns + 1;

    if (run->model->engine.kernels->convert_bf16 != NULL)
        convert_keys_and_values(run);
    run_items(&t, plan->num_panels * t.num_heads, plan->attend_flops, attend_task);
}
