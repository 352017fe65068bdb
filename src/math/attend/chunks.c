/* SPDX-License-Identifier: Apache-2.0 */
/* chunks.c: calls the kernels, and merges what they made of each chunk. */
#include "math/attend/chunks.h"

#include "base/size.h"
#include "math/attend/bias.h"
#include "math/attend/merge.h"
#include "math/attend/tokens.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* --- sums of weights --- */

/* Adds what query `c` of a panel attends to where the keys are the queries, times `f`. */
static void add_own_sums(const struct panel_work *work, const struct panel_sums *from,
                         double f, size_t c, attn_head_sums *to) {
    const struct run *run = work->run;
    size_t row = work->row_queries[c], place = ATTN_PLACE_SAME;
    unsigned places = run->id_places[work->at.first_query + row];

    to->prefix += f * (from->rest.prefix[c] + from->marked.prefix[c]);
    to->distance += f * (from->rest.distance[c] + from->marked.distance[c]);
    to->marked_prefix += f * from->marked.prefix[c];
    to->marked_distance += f * from->marked.distance[c];
    tokens_add_offsets(from->at[c], f, row, work->mask->key_len,
                       run->to_mark + work->at.first_key, to);
    for (size_t i = 0; places != 0; i++, place++, places >>= 1) {
        if ((places & 1) == 0)
            continue;
        to->at[place] += f * (from->rest.ids[i][c] + from->marked.ids[i][c]);
        to->marked_at[place] += f * from->marked.ids[i][c];
    }
}

/* Adds what the queries of a panel attend to in a chunk, or in all keys. `factors` scale
 * the weights of the chunk, which sum up to `weight_sums`; both are NULL when weights and
 * sums are final. */
static void add_panel_sums(const struct panel_work *work, const struct panel_sums *from,
                           const float *factors, const float *weight_sums,
                           bool first_chunk, double *rests, attn_head_sums *to) {
    bool itself = tokens_are_shared(work->run->request, &work->at);

    for (size_t c = 0; c < work->num_queries; c++) {
        double f = factors != NULL ? (double)factors[c] : 1;
        if (f <= 0)
            continue;
        double marked = f * from->marked.total[c];
        double rest = f * from->rest.total[c];
        double total = factors != NULL ? f * (double)weight_sums[c] : 1;
        double first = first_chunk ? f * (double)from->first[c] : 0;
        double shift = factors != NULL ? log(f) : 0; /* -f w ln(f w) is f (-w ln w) - */
        double rest_entropy = f * from->rest.entropy[c] - shift * rest; /* w f ln f */

        to->entropy += f * from->marked.entropy[c] - shift * marked + rest_entropy;
        to->total += total;
        to->at[ATTN_PLACE_FIRST] += first;
        to->at[ATTN_PLACE_SEPARATOR] += marked - first;
        to->rest_entropy += rest_entropy;
        rests[c] += rest;
        if (itself)
            add_own_sums(work, from, f, c, to);
    }
}

/* Adds the weight that the queries of a panel do not put on marked keys. */
static void add_rests(const struct panel_work *work, const double *rests,
                      attn_head_sums *to) {
    bool itself = tokens_are_shared(work->run->request, &work->at);
    size_t key_len = work->mask->key_len;

    for (size_t c = 0; c < work->num_queries; c++) {
        size_t row = work->row_queries[c], query = work->at.first_query + row;
        if (!(rests[c] > 0))
            continue;
        to->rest += rests[c];
        to->rest_entropy += rests[c] * log(rests[c]);
        to->rest_even += rests[c] * (double)work->run->rest_logs[query];
        if (!itself)
            continue;
        to->rest_itself += rests[c];
        tokens_add(row, key_len, work->run->id_places[query], rests[c], to->rest_rows);
    }
}

/* --- the kernels --- */

/* Attends by the faster of the two forms, which give the same bits. The panel's first key
 * is `first` of the sequence. */
static void run_kernel(const struct panel_work *work, size_t first,
                       struct query_panel *panel) {
    const struct kernels *kernels = work->kernels;
    bool one_form = kernels->few == SIZE_MAX;
    bool few = panel->num_queries <= kernels->few && (one_form || panel->sums == NULL);

    bias_fill(work, first, few, false, panel);
    (few ? kernels->attend_few : kernels->attend)(panel);
}

/* --- log-sum-exps --- */

/* Computes the scores of rows that attend to a single key, in units of log2. They have
 * weights of 1 without a score, since it may overflow. Only where run->lse is wanted. */
static void score_single_keys(const struct panel_work *work,
                              const struct query_panel *whole, float *ret_scores) {
    const bool not_uniform = false;

    for (size_t c = 0; work->run->lse != NULL && c < work->num_queries; c++) {
        size_t key = work->first_keys[c], first = key / KEY_BLOCK * KEY_BLOCK;
        size_t left = whole->key_len - first, from = key - first, end = from + 1;
        struct query_panel one = *whole;
        struct panel_work row = *work;
        float sum;

        if (!work->uniform[c] || work->keyless[c])
            continue;
        one.queries += c * whole->queries_ld;
        one.num_queries = 1;
        one.keys = query_panel_keys(whole, first);
        one.values += first / work->kernels->k_step * whole->values_ld;
        one.key_len = left < KEY_BLOCK ? left : KEY_BLOCK;
        one.first_keys = &from;
        one.end_keys = &end;
        one.uniform = &not_uniform;
        one.head_size = 0;
        one.weights = NULL;
        one.max = ret_scores + c;
        one.sum = &sum;
        one.sums = NULL;
        row.num_queries = 1;
        row.row_heads[0] = work->row_heads[c];
        row.row_queries[0] = work->row_queries[c];
        row.keys = (struct range){key, key + 1};
        bias_fill(&row, first, true, false, &one);
        work->kernels->attend_few(&one);
        if (isnan(sum))
            ret_scores[c] = NAN;
    }
}

/* --- sinks --- */

/* Returns the sink of a row, as an exponent of 2. */
static double find_sink(const struct panel_work *work, size_t c) {
    return (double)work->run->model->arrays[MODEL_SINKS].numbers[work->row_heads[c]] /
           log(2);
}

/* Adds the sinks to the sums of all keys, in a model that has them. It is the last step,
 * so that it does not depend on how keys are divided. Where no score is in range, the
 * sink takes all of the weight, unless it may itself be below them. */
static void add_sinks(const struct panel_work *work, const float *max, float *sum) {
    for (size_t c = 0; work->run->model->info.score.sinks && c < work->num_queries; c++) {
        double sink = find_sink(work, c);

        if (max[c] < KERNEL_FAR_SCORE && !work->keyless[c] &&
            sink < (double)KERNEL_FAR_SCORE)
            sum[c] = NAN;
        sum[c] = (float)((double)sum[c] + exp2(sink - (double)max[c]));
    }
}

/* Returns the logarithm of a sum, to base 2. */
static double find_log_sum(const struct panel_work *work, size_t c, const float *max,
                           const float *sum) {
    if (isinf(sum[c]) && work->run->model->info.score.sinks)
        return find_sink(work, c);
    return (double)max[c] + log2((double)sum[c]);
}

/* Writes log-sum-exps where they are wanted. `max` and `sum` cover all keys, and
 * `sum` has the part of a sink; `singles` come from score_single_keys(). One that is out
 * of range is NaN, since -INFINITY says that there is no valid key. */
static void write_lse(const struct panel_work *work, const float *max, const float *sum,
                      const float *singles) {
    const struct run *run = work->run;
    double least = -(double)FLT_MAX;

    if (work->mask->bias != NULL) /* below, it is not known: see query_panel */
        least = (double)KERNEL_FAR_SCORE * log(2);
    for (size_t c = 0; run->lse != NULL && c < work->num_queries; c++) {
        double lse = (double)-INFINITY;
        size_t row = work->at.first_query + work->row_queries[c];

        if (!work->keyless[c]) {
            lse = work->uniform[c] ? (double)singles[c] : find_log_sum(work, c, max, sum);
            lse *= log(2);
            if (work->kind->missing_score != NULL)
                lse += work->kind->missing_score(work, c);
            if (!(lse >= least && lse <= (double)FLT_MAX))
                lse = (double)NAN;
        }
        run->lse[row * run->model->info.num_heads + work->row_heads[c]] = (float)lse;
    }
}

/* --- chunks of the keys --- */

/* The kernels' results for each chunk. */
struct chunks {
    struct range range; /* those with keys for any of the queries; at least one */
    float *max, *sum;   /* of chunk i: at i * step, [plan->batch.panel_rows] */
    float *outputs;     /* of chunk i: at i * outputs_step */
    size_t step, outputs_step;
    struct panel_sums *sums; /* [range.end]; NULL when not wanted */
};

/* Returns the chunks that have keys for any of the queries; the first one if none has. */
static struct range find_chunks(const struct panel_work *work) {
    size_t end = work->keys.end > 0 ? work->keys.end : 1;
    return (struct range){work->keys.first / KERNEL_CHUNK_KEYS,
                          (end - 1) / KERNEL_CHUNK_KEYS + 1};
}

/* Returns how many of the first keys of a row are before a chunk ends, counted in it. */
static size_t keys_in_chunk(size_t keys, size_t first, size_t key_len) {
    size_t left = keys > first ? keys - first : 0;
    return left < key_len ? left : key_len;
}

/* The keys that a row of a panel attends to in a chunk, and where its weights begin. */
struct chunk_rows {
    size_t first_keys[KERNEL_COLUMNS_MAX], end_keys[KERNEL_COLUMNS_MAX];
    float *weights[KERNEL_COLUMNS_MAX];
};

/* Returns `whole` with the keys of one chunk, and with its rows in *ret_rows. */
static struct query_panel cut_chunk(const struct panel_work *work,
                                    const struct query_panel *whole, size_t index,
                                    struct chunk_rows *ret_rows) {
    size_t first = index * KERNEL_CHUNK_KEYS;
    struct query_panel chunk = *whole;

    chunk.keys = query_panel_keys(whole, first);
    chunk.values += first / work->kernels->k_step * whole->values_ld;
    chunk.key_len -= first;
    if (chunk.key_len > KERNEL_CHUNK_KEYS)
        chunk.key_len = KERNEL_CHUNK_KEYS;
    for (size_t c = 0; c < work->num_queries; c++) {
        ret_rows->first_keys[c] =
            keys_in_chunk(work->first_keys[c], first, chunk.key_len);
        ret_rows->end_keys[c] = keys_in_chunk(work->end_keys[c], first, chunk.key_len);
        if (whole->weights != NULL)
            ret_rows->weights[c] =
                whole->weights[c] != NULL ? whole->weights[c] + first : NULL;
    }
    chunk.first_keys = ret_rows->first_keys;
    chunk.end_keys = ret_rows->end_keys;
    chunk.weights = whole->weights != NULL ? ret_rows->weights : NULL;
    chunk.position -= (ptrdiff_t)first;
    chunk.first_key = first;
    return chunk;
}

/* Attends to one chunk of the keys of `whole`. */
static void attend_chunk(const struct panel_work *work, const struct query_panel *whole,
                         const struct chunks *chunks, size_t index) {
    struct chunk_rows rows;
    struct query_panel chunk = cut_chunk(work, whole, index, &rows);

    chunk.max = chunks->max + index * chunks->step;
    chunk.sum = chunks->sum + index * chunks->step;
    chunk.outputs = chunks->outputs + index * chunks->outputs_step;
    chunk.outputs_ld = whole->head_size;
    chunk.sums = chunks->sums != NULL ? chunks->sums + index : NULL;
    run_kernel(work, index * KERNEL_CHUNK_KEYS, &chunk);
}

/* --- scores --- */

/* Returns where the scores of row `c` go; NULL when they are not wanted. */
static float *find_scores(const struct panel_work *work, size_t c) {
    const struct run *run = work->run;
    size_t head, query;

    if (!work_find_selected(work, c, &head, &query))
        return NULL;
    size_t row = head * result_rows(run->request, work->at.sequence) + query;
    return run->reduced->scores + work->at.first_score + row * work->mask->key_len;
}

void chunks_score(const struct panel_work *work, const struct query_panel *whole) {
    const struct range chunks = find_chunks(work);
    float *scores[KERNEL_COLUMNS_MAX] = {NULL};
    struct query_panel panel = *whole;
    struct chunk_rows rows;

    panel.weights = scores;
    for (size_t c = 0; c < work->num_queries; c++) {
        scores[c] = find_scores(work, c);
        for (size_t k = 0; scores[c] != NULL && k < panel.key_len; k++)
            scores[c][k] = -INFINITY;
        if (work->keyless[c])
            scores[c] = NULL;
    }
    for (size_t i = chunks.first; work->num_queries > 0 && i < chunks.end; i++) {
        struct query_panel chunk = cut_chunk(work, &panel, i, &rows);
        bias_fill(work, i * KERNEL_CHUNK_KEYS, true, true, &chunk);
        work->kernels->score(&chunk);
    }
    for (size_t c = 0; work->kind->missing_score != NULL && c < work->num_queries; c++) {
        float missing = (float)work->kind->missing_score(work, c);
        for (size_t k = 0; scores[c] != NULL && k < panel.key_len; k++)
            scores[c][k] += missing;
    }
}

/* --- attention --- */

/* Multiplies the weights of a chunk by its factors. */
static void scale_weights(const struct panel_work *work, const float *factors,
                          size_t index) {
    size_t key_len = work->mask->key_len;
    size_t first = index * KERNEL_CHUNK_KEYS;
    size_t end = size_min(first + KERNEL_CHUNK_KEYS, key_len);

    for (size_t c = 0; c < work->num_queries; c++) {
        float *row = work->weights[c];
        for (size_t k = first; row != NULL && k < end; k++)
            row[k] *= factors[c];
    }
}

/* Makes weights 0 that are in none of the chunks. */
static void clear_weights(const struct panel_work *work, const struct chunks *chunks) {
    size_t key_len = work->mask->key_len, end = chunks->range.end * KERNEL_CHUNK_KEYS;
    size_t first = chunks->range.first * KERNEL_CHUNK_KEYS;

    for (size_t c = 0; c < work->num_queries; c++) {
        float *row = work->weights[c];
        if (row == NULL)
            continue;
        memset(row, 0, first * sizeof *row);
        if (end < key_len)
            memset(row + end, 0, (key_len - end) * sizeof *row);
    }
}

/* Writes the outputs of row `c` from its weighted sum of values, which may be there
 * already. Nothing writes to those of a head that is left out. */
static void write_output(const struct panel_work *work, const struct query_panel *panel,
                         size_t c, const float *from, float sum) {
    const struct row_outputs row = work_outputs(work, panel, c);
    float share = 1.0F / sum;

    for (size_t d = 0; row.factor != 0.0F && d < panel->head_size; d++)
        row.to[d] = from[d] * share * row.factor;
}

/* Finishes what follows from the merged results: weights, their sums, outputs and
 * log-sum-exps. */
static void finish_chunks(const struct panel_work *work, const struct query_panel *whole,
                          const struct chunks *chunks, const struct partial *total,
                          const float *singles, attn_head_sums *sums) {
    size_t size = whole->head_size;
    float factors[KERNEL_COLUMNS_MAX];
    double rests[KERNEL_COLUMNS_MAX] = {0};

    bool needs_factors = work->weighs || chunks->sums != NULL;

    add_sinks(work, total->max, total->sum);
    for (size_t i = chunks->range.first; needs_factors && i < chunks->range.end; i++) {
        partial_factors(work->kernels, work->num_queries, chunks->max + i * chunks->step,
                        total, factors);
        if (work->weighs)
            scale_weights(work, factors, i);
        if (chunks->sums != NULL)
            add_panel_sums(work, chunks->sums + i, factors,
                           chunks->sum + i * chunks->step, i == 0, rests, sums);
    }
    if (chunks->sums != NULL)
        add_rests(work, rests, sums);
    if (work->weighs && work->run->weights != NULL) /* reductions do not look there */
        clear_weights(work, chunks);

    for (size_t c = 0; c < work->num_queries; c++)
        write_output(work, whole, c, total->outputs + c * size, total->sum[c]);
    write_lse(work, total->max, total->sum, singles);
}

/* The merged results of a panel, in the thread's scratch. */
static struct partial thread_total(const struct panel_work *work) {
    size_t rows = work->run->plan->batch.panel_rows;
    float *memory = run_thread(work->run, work->thread, work->run->thread.total);
    return (struct partial){memory, memory + rows, memory + 2 * rows};
}

/* Merges a chunk into the results of those before it. */
static void merge_chunk(const struct panel_work *work, const struct query_panel *whole,
                        const struct chunks *chunks, size_t index,
                        const struct partial *total) {
    const struct partial chunk = {chunks->max + index * chunks->step,
                                  chunks->sum + index * chunks->step,
                                  chunks->outputs + index * chunks->outputs_step};
    partial_merge(work->kernels, work->num_queries, whole->head_size, &chunk, total);
}

/* Attends chunk by chunk, and merges each chunk at once. */
static void attend_chunks(const struct panel_work *work, const struct query_panel *whole,
                          attn_head_sums *sums) {
    const struct plan *plan = work->run->plan;
    const struct partial total = thread_total(work);
    size_t rows = plan->batch.panel_rows;
    struct chunks chunks = {
        .range = find_chunks(work),
        .outputs = total.outputs + rows * plan->batch.result_size,
        .max = run_thread(work->run, work->thread, work->run->thread.chunks),
        .step = 2 * rows};
    float singles[KERNEL_COLUMNS_MAX];

    chunks.sum = chunks.max + rows;
    if (sums != NULL)
        chunks.sums =
            (struct panel_sums *)(void *)(chunks.max +
                                          plan->scratch.max_chunks * chunks.step);
    score_single_keys(work, whole, singles);
    partial_clear(&total, work->num_queries, whole->head_size);
    for (size_t i = chunks.range.first; i < chunks.range.end; i++) {
        attend_chunk(work, whole, &chunks, i);
        merge_chunk(work, whole, &chunks, i, &total);
    }
    finish_chunks(work, whole, &chunks, &total, singles, sums);
}

/* Attends to all keys at once, where what the kernels write is final. */
static void attend_whole(const struct panel_work *work, struct query_panel panel,
                         attn_head_sums *sums) {
    double rests[KERNEL_COLUMNS_MAX] = {0};
    struct panel_sums of_panel;

    panel.sums = sums != NULL ? &of_panel : NULL;
    run_kernel(work, 0, &panel);
    if (sums != NULL) {
        add_panel_sums(work, &of_panel, NULL, NULL, true, rests, sums);
        add_rests(work, rests, sums);
    }
}

void chunks_attend(const struct panel_work *work, const struct query_panel *whole,
                   attn_head_sums *sums) {
    bool final = work->run->lse == NULL && !work->kind->gathers &&
                 !work->run->model->info.score.sinks;

    if (find_chunks(work).end > 1 || !final)
        attend_chunks(work, whole, sums);
    else
        attend_whole(work, *whole, sums);
}

/* Returns the chunks of a panel that are in memory of their own. */
static struct chunks chunks_of(const struct panel_work *work, float *partials) {
    const struct plan *plan = work->run->plan;

    return (struct chunks){.range = find_chunks(work),
                           .max = partials,
                           .sum = partials + plan->batch.panel_rows,
                           .outputs = partials + 2 * plan->batch.panel_rows,
                           .step = plan->scratch.partial_floats,
                           .outputs_step = plan->scratch.partial_floats};
}

void chunks_attend_one(const struct panel_work *work, const struct query_panel *whole,
                       float *partials) {
    const struct chunks chunks = chunks_of(work, partials);

    if (chunks.range.first <= work->chunk && work->chunk < chunks.range.end)
        attend_chunk(work, whole, &chunks, work->chunk);
}

void chunks_merge(const struct panel_work *work, const struct query_panel *whole,
                  float *partials) {
    const struct chunks chunks = chunks_of(work, partials);
    const struct partial total = thread_total(work);
    float singles[KERNEL_COLUMNS_MAX];

    score_single_keys(work, whole, singles);
    partial_clear(&total, work->num_queries, whole->head_size);
    for (size_t i = chunks.range.first; i < chunks.range.end; i++)
        merge_chunk(work, whole, &chunks, i, &total);
    finish_chunks(work, whole, &chunks, &total, singles, NULL);
}
