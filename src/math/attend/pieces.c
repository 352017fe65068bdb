/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.c: calls the kernels, and merges what they made of each piece. */
#include "math/attend/pieces.h"

#include "math/attend/merge.h"
#include "math/mask.h"

#include <math.h>
#include <string.h>

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

/* --- the kernels --- */

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

void pieces_attend(const struct panel_work *work, const struct query_panel *whole,
                   attn_head_sums *sums) {
    size_t count = count_pieces(work);
    struct query_panel panel = *whole;
    struct panel_sums of_panel;

    if (count > 1) {
        attend_pieces(work, whole, count, sums);
        return;
    }
    panel.sums = sums != NULL ? &of_panel : NULL;
    run_kernel(work->kernels, &panel);
    if (sums != NULL)
        add_panel_sums(work, &of_panel, NULL, NULL, true, sums);
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

void pieces_attend_one(const struct panel_work *work, const struct query_panel *whole,
                       float *partials) {
    const struct pieces pieces = pieces_of(work, partials);

    if (work->piece < pieces.count)
        attend_piece(work, whole, &pieces, work->piece);
}

void pieces_merge(const struct panel_work *work, const struct query_panel *whole,
                  float *partials) {
    const struct pieces pieces = pieces_of(work, partials);
    const struct partial total = thread_total(work);

    partial_clear(&total, work->num_queries, whole->head_size);
    for (size_t i = 0; i < pieces.count; i++) {
        const struct partial piece = {pieces.max + i * pieces.step,
                                      pieces.sum + i * pieces.step,
                                      pieces.outputs + i * pieces.outputs_step};
        partial_merge(work->kernels, work->num_queries, whole->head_size, &piece, &total);
    }
    finish_pieces(work, whole, &pieces, &total, NULL);
}
