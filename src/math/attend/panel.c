/* SPDX-License-Identifier: Apache-2.0 */
/* panel.c: calls the kernels for one panel of queries, piece by piece of its keys. */
#include "math/attend/panel.h"

#include "math/attend/merge.h"
#include "math/mask.h"

#include <math.h>
#include <string.h>

void panel_init(struct panel_work *work, const struct run *run,
                const struct sequence_position *at, size_t panel, size_t thread) {
    const attn_request *request = run->request;
    const struct engine *engine = &run->model->engine;
    size_t columns = engine->kernels->columns,
           query_len = request->query_lens[at->sequence];
    size_t first = panel * columns;
    size_t left = (at->direct ? run->plan->num_scored : 1) * query_len - first;

    work->run = run;
    work->kernels = at->direct ? engine->float_kernels : engine->kernels;
    work->at = *at;
    work->panel = panel;
    work->piece = 0;
    work->thread = thread;
    work->num_queries = left < columns ? left : columns;
    for (size_t c = 0; c < work->num_queries; c++) {
        size_t query = (first + c) % query_len;
        size_t num_keys = mask_num_keys(request, at->sequence, at->first_query, query);
        /* A single key gets all the weight, even if its score overflows. */
        work->uniform[c] = num_keys <= 1;
        work->num_keys[c] = num_keys > 0 ? num_keys : request->key_lens[at->sequence];
    }
}

/* Returns the first row of the panel in the sequence. */
static size_t panel_first(const struct panel_work *work) {
    return work->panel * work->kernels->columns;
}

/* Returns the head of a row of the panel. */
static size_t row_head(const struct panel_work *work, size_t c, size_t head) {
    const struct run *run = work->run;
    size_t query_len = run->request->query_lens[work->at.sequence];
    return work->at.direct ? ranges_item(run->scored, (panel_first(work) + c) / query_len)
                           : head;
}

/* --- the weights of a head --- */

/* Finds where the weights of the panel's queries go in the result. */
static void find_weights(struct panel_work *work, size_t head) {
    const struct run *run = work->run;
    const attn_request *request = run->request;
    size_t sequence = work->at.sequence, key_len = request->key_lens[sequence];

    work->weighs = false;
    for (size_t c = 0; run->weights != NULL && c < work->num_queries; c++) {
        size_t query = (panel_first(work) + c) % request->query_lens[sequence];
        int32_t head_slot = run->head_slots[row_head(work, c, head)];
        int32_t query_slot = run->query_slots[query];
        work->weights[c] = NULL;
        if (head_slot < 0 || query_slot < 0)
            continue;
        size_t row = (size_t)head_slot * plan_weights_rows(request, sequence);
        work->weights[c] =
            run->weights + work->at.first_weight + (row + (size_t)query_slot) * key_len;
        work->weighs = true;
    }
}

/* --- sums of weights --- */

/* Adds what the queries of a panel attend to in a piece, or in all keys. `factors` are
 * those of the piece, NULL when weights and sums are final. */
static void add_panel_sums(const struct panel_work *work, const struct panel_sums *from,
                           const float *factors, const float *weight_sums,
                           bool first_piece, attn_head_sums *to) {
    const struct sequence_position *at = &work->at;
    bool itself = mask_keys_are_queries(work->run->request, at->sequence, at->first_query,
                                        at->first_key);

    for (size_t c = 0; c < work->num_queries; c++) {
        double f = factors != NULL ? (double)factors[c] : 1;
        if (f <= 0)
            continue;
        to->entropy += f * (double)from->entropy[c];
        if (factors != NULL) /* -f w ln(f w) is f (-w ln w) - w f ln f */
            to->entropy -= f * log(f) * (double)weight_sums[c];
        if (first_piece)
            to->first += f * (double)from->first[c];
        if (!itself)
            continue;
        to->self += f * (double)from->self[c];
        to->previous += f * (double)from->previous[c];
        to->next += f * (double)from->next[c];
        to->near += f * (double)from->near[c];
        to->prefix += f * (double)from->prefix[c];
        to->distance += f * (double)from->distance[c];
    }
}

/* Returns where the sums of a head go. */
static attn_head_sums *find_sums(const struct panel_work *work, size_t head) {
    const struct run *run = work->run;
    size_t index = run->first_items[work->at.sequence];
    return run->panel_sums + index + work->panel * run->model->info.num_heads + head;
}

/* --- one head --- */

struct head_rows panel_head_rows(const struct run *run,
                                 const struct sequence_position *at, size_t head) {
    const attn_model *model = run->model;
    const struct plan *plan = run->plan;
    size_t row = head * plan->projected_keys + at->first_projected;
    size_t key_size = model->info.key_size, value_size = model->info.value_size;
    size_t score_size = model->engine.score_size, head_size = model->info.head_size;
    size_t k_step = model->engine.kernels->k_step;

    if (at->direct)
        return (struct head_rows){
            .keys = run->request->keys + at->first_key * key_size,
            .keys_ld = key_size,
            .values = run->request->values + at->first_key * value_size,
            .values_ld = value_size,
        };
    if (plan->by_head) {
        size_t words = plan->key_panels ? score_size / k_step : score_size;
        return (struct head_rows){
            .keys = run->keys + row * words,
            .keys_ld = words,
            .values = run->values + row * head_size,
            .values_ld = head_size,
            .keys_in_panels = plan->key_panels,
        };
    }
    return (struct head_rows){
        .keys = run->keys + at->first_projected * plan->score_width + head * score_size,
        .keys_ld = plan->score_width,
        .values = run->values + at->first_projected * plan->hidden + head * head_size,
        .values_ld = k_step * plan->hidden,
    };
}

/* Points a panel of a direct sequence at its rows. Their outputs are not final, so they
 * are not multiplied by the factors of their heads. */
static void describe_direct(const struct panel_work *work, struct query_panel *panel) {
    const struct run *run = work->run;
    size_t row = work->at.first_direct + panel_first(work);

    panel->outputs = run->direct + row * run->plan->direct_ld;
    panel->queries = panel->outputs;
    panel->outputs_ld = panel->queries_ld = run->plan->direct_ld;
    panel->score_size = run->model->info.key_size;
    panel->head_size = run->model->info.value_size;
    panel->factor = 1.0F;
}

/* Describes the panel in one head, over all keys. */
static struct query_panel describe(const struct panel_work *work, size_t head,
                                   const struct head_rows *rows) {
    const struct run *run = work->run;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t head_size = run->model->info.head_size;
    size_t row = work->at.first_query + panel_first(work);
    float factor = mask_head_factor(run->request, head);

    struct query_panel panel = {
        .queries = run->queries + row * plan->score_width + head * engine->score_size,
        .queries_ld = plan->score_width,
        .num_queries = work->num_queries,
        .keys = rows->keys,
        .keys_ld = rows->keys_ld,
        .keys_in_panels = rows->keys_in_panels,
        .values = rows->values,
        .values_ld = rows->values_ld,
        .key_len = run->request->key_lens[work->at.sequence],
        .num_keys = work->num_keys,
        .uniform = work->uniform,
        .additive_score = engine->additive_score,
        .score_size = engine->score_size,
        .head_size = factor != 0.0F ? head_size : 0,
        .scale = 1.0F / sqrtf((float)engine->score_size),
        .factor = factor,
        .outputs = run->context + row * plan->hidden + head * head_size,
        .outputs_ld = plan->hidden,
        .weights = work->weighs ? work->weights : NULL,
        .position = (ptrdiff_t)panel_first(work),
        .scratch = run->thread_scratch + work->thread * plan->thread_floats,
    };
    if (work->at.direct)
        describe_direct(work, &panel);
    return panel;
}

/* Attends by the faster of the two forms, which give the same bits. */
static void run_kernel(const struct kernels *kernels, const struct query_panel *panel) {
    if (panel->num_queries <= kernels->few && panel->sums == NULL)
        kernels->attend_few(panel);
    else
        kernels->attend(panel);
}

/* --- pieces of the keys --- */

/* What the kernels write of each piece. */
struct pieces {
    size_t count;
    float *max, *sum; /* of piece i: at i * step, [plan->piece_rows] */
    float *outputs;   /* likewise, at i * outputs_step */
    size_t step, outputs_step;
    struct panel_sums *sums; /* [count]; NULL when not wanted */
};

/* Returns how many pieces have keys for any of the queries. */
static size_t count_pieces(const struct panel_work *work) {
    size_t most = 1;

    for (size_t c = 0; c < work->num_queries; c++)
        most = work->num_keys[c] > most ? work->num_keys[c] : most;
    return (most - 1) / KERNEL_PIECE_KEYS + 1;
}

/* Attends to one piece of the keys of `whole`. */
static void attend_piece(const struct panel_work *work, const struct query_panel *whole,
                         const struct pieces *pieces, size_t index) {
    size_t first = index * KERNEL_PIECE_KEYS, num_keys[KERNEL_COLUMNS_MAX];
    float *weights[KERNEL_COLUMNS_MAX];
    struct query_panel piece = *whole;

    piece.keys += first * whole->keys_ld;
    piece.values += first / work->kernels->k_step * whole->values_ld;
    piece.key_len -= first;
    if (piece.key_len > KERNEL_PIECE_KEYS)
        piece.key_len = KERNEL_PIECE_KEYS;
    for (size_t c = 0; c < work->num_queries; c++) {
        size_t left = work->num_keys[c] > first ? work->num_keys[c] - first : 0;
        num_keys[c] = left < piece.key_len ? left : piece.key_len;
        if (whole->weights != NULL)
            weights[c] = whole->weights[c] != NULL ? whole->weights[c] + first : NULL;
    }
    piece.num_keys = num_keys;
    piece.weights = whole->weights != NULL ? weights : NULL;
    piece.position -= (ptrdiff_t)first;
    piece.max = pieces->max + index * pieces->step;
    piece.sum = pieces->sum + index * pieces->step;
    piece.outputs = pieces->outputs + index * pieces->outputs_step;
    piece.outputs_ld = whole->head_size;
    piece.sums = pieces->sums != NULL ? pieces->sums + index : NULL;
    run_kernel(work->kernels, &piece);
}

/* Multiplies the weights of a piece by its factors. */
static void scale_weights(const struct panel_work *work, const float *factors,
                          size_t index) {
    size_t key_len = work->run->request->key_lens[work->at.sequence];
    size_t first = index * KERNEL_PIECE_KEYS, end = first + KERNEL_PIECE_KEYS;

    end = end < key_len ? end : key_len;
    for (size_t c = 0; c < work->num_queries; c++) {
        float *row = work->weights[c];
        for (size_t k = first; row != NULL && k < end; k++)
            row[k] *= factors[c];
    }
}

/* Finishes what follows from the merged results: weights, their sums and outputs. */
static void finish_pieces(const struct panel_work *work, const struct query_panel *whole,
                          const struct pieces *pieces, const struct partial *total,
                          attn_head_sums *sums) {
    size_t size = whole->head_size, end = pieces->count * KERNEL_PIECE_KEYS;
    float factors[KERNEL_COLUMNS_MAX];

    for (size_t i = 0; i < pieces->count; i++) {
        partial_factors(work->kernels, work->num_queries, pieces->max + i * pieces->step,
                        total, factors);
        if (work->weighs)
            scale_weights(work, factors, i);
        if (pieces->sums != NULL)
            add_panel_sums(work, pieces->sums + i, factors,
                           pieces->sum + i * pieces->step, i == 0, sums);
    }

    for (size_t c = 0; c < work->num_queries; c++) {
        float *output = whole->outputs + c * whole->outputs_ld;
        float factor = whole->factor / total->sum[c];
        for (size_t d = 0; d < size; d++)
            output[d] = total->outputs[c * size + d] * factor;
        if (work->weighs && work->weights[c] != NULL && end < whole->key_len)
            memset(work->weights[c] + end, 0,
                   (whole->key_len - end) * sizeof *work->weights[c]);
    }
}

/* The merged results of a panel, in the thread's scratch. */
static struct partial thread_total(const struct panel_work *work) {
    const struct plan *plan = work->run->plan;
    float *memory = work->run->thread_scratch + work->thread * plan->thread_floats +
                    plan->thread_pieces;
    return (struct partial){memory, memory + plan->piece_rows,
                            memory + 2 * plan->piece_rows};
}

/* Attends piece by piece, and merges each piece at once. */
static void attend_pieces(const struct panel_work *work, const struct query_panel *whole,
                          size_t count, attn_head_sums *sums) {
    const struct plan *plan = work->run->plan;
    const struct partial total = thread_total(work);
    size_t outputs = plan->piece_rows * plan->result_size;
    struct pieces pieces = {
        .count = count, .outputs = total.outputs + outputs, .step = 2 * plan->piece_rows};

    pieces.max = pieces.outputs + outputs;
    pieces.sum = pieces.max + plan->piece_rows;
    if (sums != NULL)
        pieces.sums =
            (struct panel_sums *)(void *)(pieces.max + plan->max_pieces * pieces.step);
    partial_clear(&total, work->num_queries, whole->head_size);
    for (size_t i = 0; i < count; i++) {
        const struct partial piece = {pieces.max + i * pieces.step,
                                      pieces.sum + i * pieces.step, pieces.outputs};
        attend_piece(work, whole, &pieces, i);
        partial_merge(work->kernels, work->num_queries, whole->head_size, &piece, &total);
    }
    finish_pieces(work, whole, &pieces, &total, sums);
}

/* --- one panel --- */

/* Returns whether a head has nothing to compute: it is left out, and nobody looks at
 * it. */
static bool is_idle(const struct panel_work *work, const struct query_panel *panel) {
    return panel->factor == 0.0F && !work->weighs && work->run->panel_sums == NULL;
}

/* The outputs of a head that is left out are 0. Its values were not projected. */
static void clear_left_out(const struct panel_work *work,
                           const struct query_panel *panel) {
    size_t head_size = work->run->model->info.head_size;

    for (size_t c = 0; panel->factor == 0.0F && c < work->num_queries; c++)
        memset(panel->outputs + c * panel->outputs_ld, 0,
               head_size * sizeof *panel->outputs);
}

/* As panel_attend(), with the weights that `work` says. */
static void attend_head(const struct panel_work *work, size_t head,
                        const struct head_rows *rows) {
    const struct run *run = work->run;
    struct query_panel panel = describe(work, head, rows);
    size_t count = count_pieces(work);
    attn_head_sums *sums = run->panel_sums != NULL ? find_sums(work, head) : NULL;
    struct panel_sums whole;

    if (sums != NULL)
        *sums = (attn_head_sums){0};
    if (count > 1 && !is_idle(work, &panel)) {
        attend_pieces(work, &panel, count, sums);
    } else if (!is_idle(work, &panel)) {
        panel.sums = sums != NULL ? &whole : NULL;
        run_kernel(work->kernels, &panel);
        if (sums != NULL)
            add_panel_sums(work, &whole, NULL, NULL, true, sums);
    }
    clear_left_out(work, &panel);
}

void panel_attend(struct panel_work *work, size_t head, const struct head_rows *rows) {
    find_weights(work, head);
    attend_head(work, head, rows);
}

/* Returns the pieces of a panel that are in memory of their own. */
static struct pieces pieces_of(const struct panel_work *work, float *partials) {
    const struct plan *plan = work->run->plan;

    return (struct pieces){.count = count_pieces(work),
                           .max = partials,
                           .sum = partials + plan->piece_rows,
                           .outputs = partials + 2 * plan->piece_rows,
                           .step = plan->partial_floats,
                           .outputs_step = plan->partial_floats};
}

void panel_attend_piece(struct panel_work *work, size_t head,
                        const struct head_rows *rows, float *partials) {
    const struct pieces pieces = pieces_of(work, partials);

    find_weights(work, head);
    const struct query_panel whole = describe(work, head, rows);
    if (!is_idle(work, &whole) && work->piece < pieces.count)
        attend_piece(work, &whole, &pieces, work->piece);
}

void panel_merge(struct panel_work *work, size_t head, float *partials) {
    const struct head_rows no_rows = {0};
    const struct pieces pieces = pieces_of(work, partials);
    const struct partial total = thread_total(work);

    find_weights(work, head);
    const struct query_panel whole = describe(work, head, &no_rows);
    partial_clear(&total, work->num_queries, whole.head_size);
    for (size_t i = 0; i < pieces.count && !is_idle(work, &whole); i++) {
        const struct partial piece = {pieces.max + i * pieces.step,
                                      pieces.sum + i * pieces.step,
                                      pieces.outputs + i * pieces.outputs_step};
        partial_merge(work->kernels, work->num_queries, whole.head_size, &piece, &total);
    }
    if (!is_idle(work, &whole))
        finish_pieces(work, &whole, &pieces, &total, NULL);
    clear_left_out(work, &whole);
}

float *panel_thread_extra(const struct run *run, size_t thread) {
    return run->thread_scratch + thread * run->plan->thread_floats +
           run->plan->thread_extra;
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

/* Attends in one head, or in those of the rows, and adds the weights to the mean. */
static void attend_to_mean(struct panel_work *work, size_t head) {
    const struct run *run = work->run;
    const struct head_rows rows = panel_head_rows(run, &work->at, head);
    size_t key_len = run->request->key_lens[work->at.sequence];
    float *one = panel_thread_extra(run, work->thread);
    float *means[KERNEL_COLUMNS_MAX] = {NULL};

    /* The weights of each head go through the thread's scratch. */
    find_weights(work, head);
    for (size_t c = 0; c < work->num_queries; c++) {
        means[c] = work->weights[c];
        work->weights[c] = means[c] != NULL ? one + c * key_len : NULL;
    }
    attend_head(work, head, &rows);
    for (size_t c = 0; c < work->num_queries; c++) {
        if (means[c] != NULL)
            add_to_mean(row_head(work, c, head), run->model->info.num_heads,
                        work->weights[c], key_len, means[c]);
    }
}

void panel_attend_mean(struct panel_work *work) {
    const struct run *run = work->run;
    const struct sequence_position at = work->at;
    size_t columns = work->kernels->columns;
    size_t rows = run->plan->num_scored * run->request->query_lens[at.sequence];

    if (at.direct) {
        for (size_t panel = 0; panel * columns < rows; panel++) {
            panel_init(work, run, &at, panel, work->thread);
            attend_to_mean(work, 0);
        }
        return;
    }
    for (size_t h = 0; h < run->model->info.num_heads; h++)
        attend_to_mean(work, h);
}
