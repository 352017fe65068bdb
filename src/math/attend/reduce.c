/* SPDX-License-Identifier: Apache-2.0 */
/* reduce.c: sums, largest weights and entropies of the rows of a panel. */
#include "math/attend/reduce.h"

#include "base/pace.h"
#include "base/size.h"
#include "math/plan/rules.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define RANGE_KEYS_PER_STEP 8     /* of finding the largest weights */
#define FLOPS_EACH          4     /* of clearing or writing a sum */
#define PART_SUMS           65536 /* that a task clears */

/* A row of weights, and where it is among those that are selected. */
struct row {
    const struct panel_work *work;
    const float *weights; /* [Tk] */
    struct range keys;    /* others have a weight of 0 */
    size_t c;             /* in the panel */
    size_t head, query;   /* among the selected heads and queries */
    size_t heads, rows;   /* how many of them the sequence has */
};

/* Returns the number of the row, where each head of a sequence has so many. */
static size_t find_row(const struct row *row) {
    return row->work->at.first_row * row->heads + row->head * row->rows + row->query;
}

/* Returns the number of the row where each query has one for each head. */
static size_t find_pair(const struct row *row) {
    return (row->work->at.first_row + row->query) * row->heads + row->head;
}

/* --- sums --- */

/* Returns the sum of weights in a range. The order of the sum depends on nothing but
 * where the range begins. */
static double sum_range(const struct row *row, size_t first, size_t end) {
    const struct range range = range_clip(row->keys, first, end);
    return row->work->kernels->sum_floats(row->weights + range.first,
                                          range.end - range.first);
}

/* Returns the sums of the row up to each of its keys, [keys + 1], in the thread's
 * scratch: that before key k is at k - row->keys.first. */
static const double *sum_prefixes(const struct row *row) {
    const struct run *run = row->work->run;
    double *sums =
        (double *)(void *)run_thread(run, row->work->thread, run->thread.prefix);
    double sum = 0;

    sums[0] = 0;
    for (size_t k = row->keys.first; k < row->keys.end; k++) {
        sum += (double)row->weights[k];
        sums[k + 1 - row->keys.first] = sum;
    }
    return sums;
}

static void sum_spans(const struct row *row) {
    const struct run *run = row->work->run;
    const attn_reductions *reduce = &run->request->reduce;
    size_t count = reduce->num_spans;
    bool many = plan_sums_prefixes(run->request);
    const double *sums = many ? sum_prefixes(row) : NULL;
    const size_t *spans = reduce->spans;
    float *to = run->reduced->span_weights + find_row(row) * count;

    assert(spans != NULL);
    if (reduce->spans_per_sequence)
        spans += 2 * row->work->at.sequence * count;
    for (size_t i = 0; i < count; i++) {
        const struct range range = range_clip(row->keys, spans[2 * i], spans[2 * i + 1]);
        if (!many)
            to[i] = (float)sum_range(row, range.first, range.end);
        else
            to[i] = range.first == range.end
                        ? 0
                        : (float)(sums[range.end - row->keys.first] -
                                  sums[range.first - row->keys.first]);
        pace_add(1);
    }
}

static void sum_target(const struct row *row) {
    const struct run *run = row->work->run;
    size_t query = row->work->at.first_query + row->work->row_queries[row->c];
    const size_t *target = run->request->reduce.targets + 2 * query;

    run->reduced->target_weights[find_pair(row)] =
        (float)sum_range(row, target[0], target[1]);
}

/* Computes -sum of w ln w, where 0 ln 0 is 0. */
static void find_entropy(const struct row *row) {
    double sum = 0;

    for (size_t k = row->keys.first; k < row->keys.end; k++) {
        float weight = row->weights[k];
        if (weight != 0)
            sum -= (double)weight * (double)logf(weight);
    }
    row->work->run->reduced->entropy[find_pair(row)] = (float)sum;
}

/* --- the largest weights --- */

/* A heap of the largest weights so far, the least of which is first. */
struct top {
    size_t count;
    struct top_key {
        float weight;
        int32_t key;
    } * keys;
};

_Static_assert(sizeof(struct top_key) == REDUCE_TOP_FLOATS * sizeof(float),
               "the scratch has room for REDUCE_TOP_FLOATS of each");

/* Whether a is further from the top than b: it weighs less, or as much at a later key. */
static bool is_below(struct top_key a, struct top_key b) {
    return a.weight < b.weight || (a.weight == b.weight && a.key > b.key);
}

/* Puts `added` where entry i of the heap is, or below it. */
static void sift_down(struct top *top, size_t i, struct top_key added) {
    for (size_t child = 2 * i + 1; child < top->count; child = 2 * i + 1) {
        if (child + 1 < top->count && is_below(top->keys[child + 1], top->keys[child]))
            child++;
        if (!is_below(top->keys[child], added))
            break;
        top->keys[i] = top->keys[child];
        i = child;
    }
    top->keys[i] = added;
}

/* Whether the row attends to a key of its range, whose weight may be too small to be
 * told from 0. */
static bool is_attended(const struct row *row, size_t key) {
    const struct mask *mask = row->work->mask;
    size_t query = row->work->row_queries[row->c];
    const float *bias = mask_bias(mask, row->work->row_heads[row->c], query);

    if (row->weights[key] != 0)
        return true;
    return (!mask->by_pair || mask_attends(mask, query, key)) &&
           (bias == NULL || !isinf(bias[key]));
}

/* Finds the `size` largest weights in a range. Returns false when one is NaN. */
static bool find_top_keys(const struct row *row, struct range range, size_t size,
                          struct top *top) {
    const struct kernels *kernels = row->work->kernels;
    size_t k = range.first;

    top->count = 0;
    for (; k < range.end && top->count < size; k++) {
        if (isnan(row->weights[k]))
            return false;
        if (is_attended(row, k))
            top->keys[top->count++] = (struct top_key){row->weights[k], (int32_t)k};
    }
    for (size_t i = top->count / 2; i-- > 0;) /* makes them a heap */
        sift_down(top, i, top->keys[i]);
    for (; k < range.end; k++) {
        k += kernels->find_larger(row->weights + k, range.end - k, top->keys[0].weight);
        if (k == range.end)
            break;
        if (isnan(row->weights[k]))
            return false;
        sift_down(top, 0, (struct top_key){row->weights[k], (int32_t)k});
    }
    return true;
}

/* Writes the largest weights of a range, and their keys, in order. */
static void write_top(const struct row *row, struct range range, size_t size,
                      float *to_weights, int64_t *to_keys) {
    const struct run *run = row->work->run;
    struct top top = {0, (void *)run_thread(run, row->work->thread, run->thread.top)};
    bool finite = find_top_keys(row, range, size, &top);

    for (size_t i = finite ? top.count : 0; i < size; i++) {
        to_weights[i] = finite ? 0 : NAN;
        to_keys[i] = -1;
    }
    while (finite && top.count > 0) {
        struct top_key least = top.keys[0];
        top.count--;
        if (top.count > 0)
            sift_down(&top, 0, top.keys[top.count]);
        to_weights[top.count] = least.weight;
        to_keys[top.count] = least.key;
    }
}

static void find_top(const struct row *row) {
    const attn_reductions *reduce = &row->work->run->request->reduce;
    const attn_result *to = row->work->run->reduced;
    size_t ranges = reduce->top_in != NULL ? reduce->num_top_in : 1, k = reduce->top_k;
    size_t first = find_row(row) * ranges * k;

    for (size_t i = 0; i < ranges; i++, first += k) {
        struct range range = row->keys;
        if (reduce->top_in != NULL)
            range =
                range_clip(row->keys, reduce->top_in[2 * i], reduce->top_in[2 * i + 1]);
        write_top(row, range, k, to->top_weights + first, to->top_keys + first);
        pace_add((range.end - range.first) / RANGE_KEYS_PER_STEP);
    }
}

/* --- sums over queries --- */

/* Returns the factor of a row in what its keys receive. */
static float row_factor(const struct row *row) {
    const struct panel_work *work = row->work;
    const attn_request *request = work->run->request;
    const float *factors = request->reduce.row_weights;

    if (factors == NULL)
        return 1;
    if (request->reduce.row_weights_per_head)
        factors += work->row_heads[row->c] * request->query_lens[0];
    return factors[work->row_queries[row->c]];
}

/* Adds a row, times its factor, to what its keys receive. */
static void add_received(const struct row *row) {
    const struct panel_work *work = row->work;
    double *to = work->run->received + work->at.first_key * row->heads +
                 row->head * work->mask->key_len;

    work->kernels->add_floats(row->weights + row->keys.first,
                              row->keys.end - row->keys.first, row_factor(row),
                              to + row->keys.first);
}

/* Adds a row to the blocks of its keys. */
static void add_to_blocks(const struct row *row) {
    const struct panel_work *work = row->work;
    const attn_request *request = work->run->request;
    size_t block = request->reduce.block;
    size_t key_blocks = result_blocks(request, work->mask->key_len);
    size_t row_blocks = result_blocks(request, row->rows);
    double *to = work->run->blocks + work->at.first_block +
                 (row->head * row_blocks + row->query / block) * key_blocks;

    for (size_t first = row->keys.first / block * block; first < row->keys.end;
         first += block)
        to[first / block] += sum_range(row, first, first + block);
}

/* Returns how many items a sequence has that write its sums: its selected heads. */
static size_t count_heads(const struct run *run, size_t sequence) {
    (void)sequence;
    return run->plan->wanted.num_selected;
}

/* Writes the means of the blocks of one head. */
static void write_blocks(const struct run *run, size_t rows, size_t keys, size_t first) {
    size_t block = run->request->reduce.block;
    size_t key_blocks = result_blocks(run->request, keys);

    for (size_t q = 0; q < rows; q += block) {
        double count = (double)size_min(block, rows - q);
        for (size_t k = 0; k < key_blocks; k++, first++)
            run->reduced->block_weights[first] = (float)(run->blocks[first] / count);
    }
}

static void write_sums(const struct run *run, const struct sequence_position *at,
                       struct range heads, size_t thread) {
    const attn_request *request = run->request;
    size_t keys = request->key_lens[at->sequence];
    size_t rows = result_rows(request, at->sequence);
    size_t blocks = result_blocks(request, rows) * result_blocks(request, keys);
    size_t first = at->first_key * run->plan->wanted.num_selected + heads.first * keys;

    (void)thread;
    for (size_t i = first;
         request->reduce.received && i < first + (heads.end - heads.first) * keys; i++)
        run->reduced->received[i] = (float)run->received[i];
    for (size_t h = heads.first; request->reduce.block > 0 && h < heads.end; h++)
        write_blocks(run, rows, keys, at->first_block + h * blocks);
}

/* Returns how many sums there are. */
static size_t count_sums(const struct run *run) {
    return run->plan->batch.results[RESULT_RECEIVED] +
           run->plan->batch.results[RESULT_BLOCK_WEIGHTS];
}

static void clear_part(void *data, size_t index, size_t thread) {
    const struct run *run = data;
    size_t first = index * PART_SUMS, end = size_min(first + PART_SUMS, count_sums(run));

    (void)thread;
    memset(run->received + first, 0, (end - first) * sizeof *run->received);
}

void reduce_clear(struct run *run) {
    share_tasks(run->request->parallel, FLOPS_EACH * (double)count_sums(run),
                count_sums(run) / PART_SUMS + 1, clear_part, run);
}

void reduce_finish(const struct run *run) {
    run_items(run, FLOPS_EACH * (double)count_sums(run), count_heads, write_sums);
}

/* --- rows --- */

/* What makes each result of a row, for all that are RESULT_REDUCED. */
static void (*const reductions[NUM_RESULTS])(const struct row *row) = {
    [RESULT_SPAN_WEIGHTS] = sum_spans,
    [RESULT_TOP_KEYS] = find_top, /* and their weights */
    [RESULT_TARGET_WEIGHTS] = sum_target,
    [RESULT_RECEIVED] = add_received,
    [RESULT_ENTROPY] = find_entropy,
    [RESULT_BLOCK_WEIGHTS] = add_to_blocks,
};

void reduce_panel(const struct panel_work *work) {
    const struct run *run = work->run;
    size_t sequence = work->at.sequence;

    for (size_t c = 0; c < work->num_queries; c++) {
        size_t head, query;
        if (!work_find_selected(work, c, &head, &query))
            continue;
        const struct row row = {
            .work = work,
            .weights = work->weights[c],
            .keys = {work->first_keys[c], work->end_keys[c]},
            .c = c,
            .head = head,
            .query = query,
            .heads = run->plan->wanted.num_selected,
            .rows = result_rows(run->request, sequence),
        };
        for (enum result_id id = 0; id < NUM_RESULTS; id++) {
            if (run->plan->wanted.has[id] && reductions[id] != NULL)
                reductions[id](&row);
        }
    }
}
