/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: the attention, cut into panels of queries of each head. All rows of the batch
 * stand after each other without padding; heads are addressed by leading dimension. */
#include "math/mask.h"
#include "math/run.h"

#include <string.h>

#define GATHER_PANELS 4 /* fewer panels would not read a head's rows often enough */

/* Where a panel of queries stands. */
struct place {
    size_t sequence;
    size_t first_query, first_key; /* of the sequence, in the batch */
    size_t panel;                  /* of the sequence */
    size_t first_weight;           /* of the sequence, in the result's weights */
};

static size_t weights_of_sequence(const struct run *run, size_t sequence) {
    const attn_request *request = run->request;
    return request->query_lens[sequence] * request->key_lens[sequence] *
           (request->need_weights == ATTN_WEIGHTS_ALL ? run->model->info.num_heads : 1);
}

static void next_sequence(const struct run *run, struct place *place) {
    place->first_query += run->request->query_lens[place->sequence];
    place->first_key += run->request->key_lens[place->sequence];
    place->first_weight += weights_of_sequence(run, place->sequence);
    place->sequence++;
    place->panel = 0;
}

/* Sets what one panel attends to; returns how many queries it has. */
static size_t set_num_keys(const struct run *run, const struct place *place,
                           size_t *num_keys, bool *uniform) {
    const attn_request *request = run->request;
    size_t columns = run->model->engine.kernels->columns, first = place->panel * columns;
    size_t left = request->query_lens[place->sequence] - first;
    size_t count = left < columns ? left : columns;
    for (size_t c = 0; c < count; c++) {
        num_keys[c] =
            mask_num_keys(request, place->sequence, place->first_query, first + c);
        uniform[c] = num_keys[c] == 0;
        if (uniform[c])
            num_keys[c] = request->key_lens[place->sequence];
    }
    return count;
}

/* Keys and values of one head of one sequence. */
struct rows {
    const float *keys, *values;
    size_t keys_ld, values_ld; /* from one row of elements to the next */
};

/* Returns a thread's scratch behind that of the kernels. */
static float *thread_extra(const struct run *run, size_t thread) {
    return run->thread_scratch + thread * run->plan->thread_floats +
           run->plan->thread_extra;
}

static struct rows rows_in_place(const struct run *run, const struct place *place,
                                 size_t head) {
    const attn_model *model = run->model;
    const struct plan *plan = run->plan;
    return (struct rows){
        .keys = run->keys + place->first_key * plan->score_width +
                head * model->engine.score_size,
        .keys_ld = plan->score_width,
        .values =
            run->values + place->first_key * plan->hidden + head * model->info.head_size,
        .values_ld = model->engine.kernels->numbers * plan->hidden,
    };
}

static float *copy_rows(const float *from, size_t from_ld, size_t rows, size_t width,
                        float *to) {
    for (size_t r = 0; r < rows; r++, from += from_ld, to += width)
        memcpy(to, from, width * sizeof *to);
    return to;
}

/* Brings a head's rows, which stand far apart, together in the thread's scratch when enough panels
 * will read them: caches and their prefetchers do badly with rows a power of two apart.
 */
static struct rows gather_rows(const struct run *run, const struct place *place,
                               size_t head, size_t panels, size_t thread) {
    const struct engine *engine = &run->model->engine;
    struct rows rows = rows_in_place(run, place, head);
    size_t key_len = run->request->key_lens[place->sequence];
    size_t numbers = engine->kernels->numbers, head_size = run->model->info.head_size;
    if (panels < GATHER_PANELS || key_len > run->plan->gather_keys)
        return rows;
    size_t key_width = engine->additive_score != NULL
                           ? engine->score_size
                           : (engine->score_size + numbers - 1) / numbers;
    float *keys = thread_extra(run, thread);
    float *values = copy_rows(rows.keys, rows.keys_ld, key_len, key_width, keys);
    copy_rows(rows.values, rows.values_ld, (key_len + numbers - 1) / numbers, head_size,
              values);
    return (struct rows){keys, values, key_width, head_size};
}

/* One panel of one head; writes its outputs and, at `weights` [count, Tk], its weights.
 */
static void attend_head(const struct run *run, const struct place *place, size_t head,
                        const struct rows *rows, const size_t *num_keys,
                        const bool *uniform, size_t count, float *weights,
                        size_t thread) {
    const attn_model *model = run->model;
    const struct engine *engine = &model->engine;
    const struct plan *plan = run->plan;
    size_t head_size = model->info.head_size;
    size_t row = place->first_query + place->panel * engine->kernels->columns;
    float factor = run->request->head_mask != NULL ? run->request->head_mask[head] : 1.0F;
    float *outputs = run->context + row * plan->hidden + head * head_size;
    const struct panel_of_queries panel = {
        .queries = run->queries + row * plan->score_width + head * engine->score_size,
        .queries_ld = plan->score_width,
        .num_queries = count,
        .keys = rows->keys,
        .keys_ld = rows->keys_ld,
        .values = rows->values,
        .values_ld = rows->values_ld,
        .key_len = run->request->key_lens[place->sequence],
        .num_keys = num_keys,
        .uniform = uniform,
        .additive_score = engine->additive_score,
        .score_size = engine->score_size,
        .head_size = head_size,
        .factor = factor,
        .outputs = outputs,
        .outputs_ld = plan->hidden,
        .weights = weights,
        .scratch = run->thread_scratch + thread * plan->thread_floats,
    };
    if (factor != 0.0F || weights != NULL)
        engine->kernels->attend(&panel);
    for (size_t c = 0; factor == 0.0F && c < count; c++) /* pruned: values do not count */
        memset(outputs + c * plan->hidden, 0, head_size * sizeof *outputs);
}

/* All heads of one panel whose mean weights are wanted: added up in the order of the
 * heads. The result's own rows hold the sum; each head's weights go to the rows of the
 * thread's scratch. */
static void attend_mean(const struct run *run, const struct place *place,
                        size_t *num_keys, const bool *uniform, size_t count,
                        size_t thread) {
    size_t num_heads = run->model->info.num_heads;
    size_t key_len = run->request->key_lens[place->sequence];
    size_t columns = run->model->engine.kernels->columns;
    float *mean = run->weights + place->first_weight + place->panel * columns * key_len;
    float *one = thread_extra(run, thread);
    for (size_t h = 0; h < num_heads; h++) {
        struct rows rows = rows_in_place(run, place, h);
        attend_head(run, place, h, &rows, num_keys, uniform, count, h == 0 ? mean : one,
                    thread);
        for (size_t i = 0; i < count * key_len; i++)
            mean[i] =
                h == 0 ? mean[i] / (float)num_heads : mean[i] + one[i] / (float)num_heads;
    }
}

/* All that one panel has to do in one head, or in all when the mean of their weights is
 * wanted. */
static void attend_panel(const struct run *run, const struct place *place, size_t head,
                         const struct rows *rows, size_t thread) {
    size_t num_keys[KERNEL_COLUMNS_MAX];
    bool uniform[KERNEL_COLUMNS_MAX];
    size_t count = set_num_keys(run, place, num_keys, uniform);
    if (run->request->need_weights == ATTN_WEIGHTS_MEAN) {
        attend_mean(run, place, num_keys, uniform, count, thread);
        return;
    }
    float *weights = run->weights;
    if (weights != NULL) {
        size_t key_len = run->request->key_lens[place->sequence];
        size_t row = head * run->request->query_lens[place->sequence] +
                     place->panel * run->model->engine.kernels->columns;
        weights += place->first_weight + row * key_len;
    }
    attend_head(run, place, head, rows, num_keys, uniform, count, weights, thread);
}

/* The steps of the attention: `per_head` is how many of num_items go to each sequence's
 * head. */
struct attention {
    const struct run *run;
    size_t num_heads; /* 1 when a panel does all heads itself */
    size_t num_items; /* panels times num_heads */
    size_t chunk;     /* items in one task */
};

/* Finds the sequence of item `index`; items go by sequence, head, panel. */
static struct place find_place(const struct attention *a, size_t index,
                               size_t *ret_head) {
    const struct run *run = a->run;
    struct place place = {0};
    const size_t *first = run->first_panels;
    size_t panel = index / a->num_heads, low = 0, high = run->request->num_sequences;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (first[middle] <= panel)
            low = middle;
        else
            high = middle;
    }
    while (place.sequence < low)
        next_sequence(run, &place);
    size_t panels = first[low + 1] - first[low], rest = index - first[low] * a->num_heads;
    *ret_head = rest / panels;
    place.panel = rest % panels;
    return place;
}

static void attend_chunk(void *data, size_t index, size_t thread) {
    const struct attention *a = data;
    const struct run *run = a->run;
    size_t item = index * a->chunk, end = item + a->chunk, head;
    struct place place = find_place(a, item, &head);
    end = end < a->num_items ? end : a->num_items;
    while (item < end) {
        const size_t *first = run->first_panels + place.sequence;
        size_t panels = first[1] - first[0] - place.panel; /* left of this head */
        panels = panels < end - item ? panels : end - item;
        struct rows rows = gather_rows(run, &place, head, panels, thread);
        for (size_t last = item + panels; item < last; item++, place.panel++)
            attend_panel(run, &place, head, &rows, thread);
        if (place.panel == first[1] - first[0]) {
            place.panel = 0;
            head++;
        }
        if (head == a->num_heads) {
            head = 0;
            next_sequence(run, &place);
        }
    }
}

/* Makes keys and values of sequences and heads index * chunk.. narrow, where they stand.
 */
static void narrow_heads(void *data, size_t index, size_t thread) {
    const struct attention *a = data;
    const struct run *run = a->run;
    const attn_model_info *info = &run->model->info;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t item = index * a->chunk, end = item + a->chunk;
    struct place place = {0};
    (void)thread;
    for (; item < end && item < a->num_items; item++) {
        size_t head = item % info->num_heads;
        while (place.sequence < item / info->num_heads)
            next_sequence(run, &place);
        float *keys = run->keys + place.first_key * plan->score_width;
        float *values = run->values + place.first_key * plan->hidden;
        size_t rows = run->request->key_lens[place.sequence];
        keys += head * engine->score_size;
        values += head * info->head_size;
        if (engine->additive_score == NULL)
            engine->kernels->narrow(keys, plan->score_width, rows, engine->score_size,
                                    keys, plan->score_width);
        engine->kernels->narrow_pairs(values, plan->hidden, rows, info->head_size, values,
                                      2 * plan->hidden);
    }
}

static void narrow_keys_and_values(const struct run *run) {
    const attn_model_info *info = &run->model->info;
    struct attention a = {.run = run, .num_heads = info->num_heads};
    a.num_items = run->request->num_sequences * info->num_heads;
    a.chunk = a.num_items / (run->plan->num_threads * RUN_TASKS_PER_THREAD) + 1;
    run_share(run,
              RUN_NARROW_FLOPS * 2.0 * (double)run->plan->sizes.num_keys *
                  (double)run->plan->hidden,
              (a.num_items + a.chunk - 1) / a.chunk, narrow_heads, &a);
}

void run_attend(const struct run *run) {
    const attn_model_info *info = &run->model->info;
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    size_t columns = run->model->engine.kernels->columns;
    bool mean = request->need_weights == ATTN_WEIGHTS_MEAN;
    struct attention a = {.run = run, .num_heads = mean ? 1 : info->num_heads};
    double pairs = 0;
    run->first_panels[0] = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        run->first_panels[s + 1] =
            run->first_panels[s] + (request->query_lens[s] - 1) / columns + 1;
        pairs += (double)request->query_lens[s] * (double)request->key_lens[s];
    }
    if (run->model->engine.kernels->narrow != NULL)
        narrow_keys_and_values(run);
    a.num_items = plan->num_panels * a.num_heads;
    a.chunk = a.num_items / (plan->num_threads * RUN_TASKS_PER_THREAD) + 1;
    run_share(run, 4.0 * pairs * (double)plan->hidden,
              (a.num_items + a.chunk - 1) / a.chunk, attend_chunk, &a);
}
