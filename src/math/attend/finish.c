/* SPDX-License-Identifier: Apache-2.0 */
/* finish.c: what becomes of projected rows: they are normed and rotated to their
 * positions, and keys go into panels, values into pairs. An item is up to KEY_BLOCK rows
 * of a sequence, in all heads. */
#include "math/attend/attend.h"

#include "math/rows/norm.h"
#include "math/rows/rotate.h"
#include "math/run/run.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define FILL_FLOPS 100 /* of a cosine and a sine */

/* One sequence on one thread. */
struct finishing {
    const struct run *run;
    const struct sequence_position *at;
    struct rotation rotation; /* without pairs: none */
    /* Of each axis, and those that pairs pick of these; the first ones alone where
     * positions have one axis. */
    struct rotation_angles angles[ATTN_AXES], picked;
    float *tile; /* [KEY_BLOCK, score_size] */
};

/* Projected rows of a sequence: queries, keys or values. */
struct row_set {
    float *rows;
    size_t row_ld, head_ld;  /* from a row to the next, and from a head to the next */
    struct ranges heads;     /* those that were projected */
    const size_t *positions; /* of the rows, or NULL */
    const size_t *axes;      /* [ATTN_AXES, count], likewise */
    size_t count, size;      /* rows, and numbers of a head */
    bool norms, whole;       /* heads are normed, all of a row at once */
    bool own;                /* each head has weights of its own */
    bool last;               /* heads are normed after the rotation */
    struct norm norm;
    float clip; /* what is normed is clipped to it; 0: it is not */
    void (*rotate)(const struct rotation_angles *angles, float *head); /* NULL: none */
    bool scaled; /* they are multiplied by the factor of their position */
};

/* Returns the positions of a sequence that begins at row `first` of the batch. */
static const size_t *positions_from(const size_t *positions, size_t first) {
    return positions != NULL ? positions + first : NULL;
}

static const size_t *axes_from(const size_t *positions, size_t first) {
    return positions_from(positions, ATTN_AXES * first);
}

static size_t count_row_blocks(size_t rows) {
    return (rows - 1) / KEY_BLOCK + 1;
}

static size_t count_finish_items(const struct run *run, size_t sequence) {
    const attn_request *request = run->request;
    return count_row_blocks(request->key_lens[sequence]) +
           count_row_blocks(request->query_lens[sequence]);
}

/* --- rotations --- */

/* Returns the largest of `count` positions; NULL: 0, 1, 2, ... */
static size_t largest_position(const size_t *positions, size_t count) {
    size_t largest = positions != NULL ? positions[0] : count - 1;

    for (size_t i = 1; positions != NULL && i < count; i++)
        largest = positions[i] > largest ? positions[i] : largest;
    return largest;
}

/* Returns the rotation of a sequence. `frequencies` is memory for those that depend on
 * its length. */
static struct rotation find_rotation(const struct run *run,
                                     const struct sequence_position *at,
                                     double *frequencies) {
    const struct model_rotation *of_model = &run->model->rotation;
    const attn_request *request = run->request;
    struct rotation rotation = {.frequencies = of_model->frequencies,
                                .num_pairs = run->model->info.rotation.size / 2,
                                .magnitude = of_model->magnitude,
                                .table = run->rotations};
    size_t longest = of_model->max_length, size = 2 * rotation.num_pairs;

    if (longest == 0 || rotation.num_pairs == 0)
        return rotation;
    const size_t *of_queries = positions_from(request->positions, at->first_query);
    const size_t *of_keys = positions_from(request->key_positions, at->first_key);
    size_t last = largest_position(of_queries, request->query_lens[at->sequence]);
    size_t last_key = largest_position(of_keys, request->key_lens[at->sequence]);
    double length = (double)(last > last_key ? last : last_key) + 1;
    if (length <= (double)longest)
        return rotation;

    rotation.frequencies = of_model->long_frequencies;
    if (rotation.table != NULL)
        rotation.table += (size_t)ROTATE_STEP * size;
    if (of_model->long_frequencies != NULL)
        return rotation;
    double stretch = of_model->factor * length / (double)longest - (of_model->factor - 1);
    double base = of_model->base * pow(stretch, (double)size / ((double)size - 2));
    for (size_t a = 0; a < rotation.num_pairs; a++)
        frequencies[a] = pow(base, -2 * (double)a / (double)size);
    rotation.frequencies = frequencies;
    rotation.table = NULL;
    return rotation;
}

/* Fills entry `index` of the tables. */
static void fill_entry(void *data, size_t index, size_t thread) {
    const struct run *run = data;
    const struct model_rotation *of_model = &run->model->rotation;
    const struct rotation rotation = {
        .frequencies =
            index < ROTATE_STEP ? of_model->frequencies : of_model->long_frequencies,
        .num_pairs = run->model->info.rotation.size / 2,
    };

    (void)thread;
    rotate_fill(&rotation, index % ROTATE_STEP,
                run->rotations + index * 2 * rotation.num_pairs);
}

/* --- rows --- */

/* Returns where a position is on an axis of the grid, as struct model_rotation has it. */
static size_t find_on_grid(const attn_model_info *info, size_t position, size_t axis) {
    size_t grid = info->rotation.grid, first = info->rotation.grid_first;

    if (position < first)
        return grid;
    position -= first;
    return 2 * (axis == 1 ? position / grid : position % grid) + 1;
}

/* Turns to the position of row `r`, and returns the angles there. */
static const struct rotation_angles *turn_row(struct finishing *p,
                                              const struct row_set *rows, size_t r) {
    const attn_model_info *info = &p->run->model->info;
    struct rotation_angles *angles = p->angles;
    size_t position = rows->positions != NULL ? rows->positions[r] : r;

    if (rows->axes == NULL && info->rotation.grid == 0) {
        rotate_turn(angles, position);
        return angles;
    }
    for (size_t axis = 0; axis < ATTN_AXES; axis++)
        rotate_turn(&angles[axis], rows->axes != NULL
                                       ? rows->axes[axis * rows->count + r]
                                       : find_on_grid(info, position, axis));
    rotate_pick(angles, p->run->model->rotation.axis_of, &p->picked);
    return &p->picked;
}

/* Norms one head of a row, of which `by` is the scale of a norm over all heads. */
static void norm_head(const struct row_set *rows, struct norm_scale by, size_t head,
                      float *x) {
    if (!rows->whole)
        by = norm_find(&rows->norm, x, 1, 0);
    norm_apply(&rows->norm, by, rows->own ? head * rows->size : 0, rows->size, x, x);
    if (rows->clip > 0)
        norm_clip(rows->clip, rows->size, x);
}

/* Returns the factor of queries at a position. */
static float find_factor(const attn_model_info *info, size_t position) {
    size_t steps = (position + info->query_factor.offset) / info->query_factor.length;

    return (float)(1 + info->query_factor.beta * log1p((double)steps));
}

/* Norms, rotates and scales row `r` of the sequence. */
static void finish_row(struct finishing *p, const struct row_set *rows, size_t r) {
    const struct ranges heads = rows->heads;
    const struct norm *norm = &rows->norm;
    size_t position = rows->positions != NULL ? rows->positions[r] : r;
    float *row = rows->rows + r * rows->row_ld;
    const struct rotation_angles *angles = NULL;
    float factor = rows->scaled ? find_factor(&p->run->model->info, position) : 1.0F;
    struct norm_scale by = {0};

    if (rows->norms && rows->whole)
        by = norm_find(norm, row, norm->size / rows->size, rows->head_ld);
    if (rows->rotate != NULL)
        angles = turn_row(p, rows, r);
    for (size_t i = 0; i < heads.count; i++) {
        for (size_t h = heads.items[i].first; h < heads.items[i].end; h++) {
            float *x = row + h * rows->head_ld;
            if (rows->norms && !rows->last)
                norm_head(rows, by, h, x);
            if (angles != NULL)
                rows->rotate(angles, x);
            if (rows->norms && rows->last)
                norm_head(rows, by, h, x);
            for (size_t k = 0; rows->scaled && k < rows->size; k++)
                x[k] *= factor;
        }
    }
}

/* Transposes keys first..first+count of a sequence into a panel, in each head. */
static void store_panels(const struct finishing *p, const struct row_set *keys,
                         size_t first, size_t count) {
    const struct kernels *kernels = p->run->model->engine.kernels;
    const struct ranges heads = keys->heads;
    size_t size = keys->row_ld, width = size / kernels->k_step;

    for (size_t i = 0; i < heads.count; i++) {
        for (size_t h = heads.items[i].first; h < heads.items[i].end; h++) {
            float *panel = keys->rows + h * keys->head_ld + first * size;
            if (kernels->convert_bf16 != NULL)
                kernels->convert_bf16(panel, size, count, size, p->tile, width);
            else
                memcpy(p->tile, panel, count * size * sizeof *panel);
            kernels->transpose(p->tile, width, count, width, panel, count);
        }
    }
}

/* Converts values first..first+count of a sequence to pairs, in each head. `first` is
 * even. */
static void store_pairs(const struct finishing *p, const struct row_set *values,
                        size_t first, size_t count) {
    const struct kernels *kernels = p->run->model->engine.kernels;
    const struct plan_rows *pairs = &p->run->plan->values;
    const struct ranges heads = values->heads;
    size_t pair = p->at->first_value + first / 2;
    float *to = p->run->values + pair * pairs->ld;

    for (size_t i = 0; i < heads.count; i++) {
        for (size_t h = heads.items[i].first; h < heads.items[i].end; h++)
            kernels->pack_pairs_bf16(
                values->rows + h * values->head_ld + first * values->row_ld,
                values->row_ld, count, values->size, to + h * pairs->head_ld, pairs->ld);
    }
}

/* Describes the projected values of a sequence, but for positions. */
static struct row_set find_value_set(const struct finishing *p) {
    const struct run *run = p->run;
    const attn_model_info *info = &run->model->info;
    size_t size = info->width.head, ld = run->plan->values.ld;
    size_t keys = run->plan->batch.projected_keys;

    return (struct row_set){.rows = run->value_rows + p->at->first_projected * ld,
                            .row_ld = ld,
                            .head_ld = run->plan->layer.by_head ? keys * size : size,
                            .heads = run->summed_keys,
                            .size = size,
                            .norms = info->value_norm.kind != ATTN_NORM_NONE,
                            .norm = {.centred = info->value_norm.kind == ATTN_NORM_LAYER,
                                     .eps = info->value_norm.eps,
                                     .size = size},
                            .rotate =
                                info->rotation.values ? rotate_apply_neighbours : NULL};
}

/* Describes the projected queries, keys or values of a sequence, as rows. */
static struct row_set find_row_set(const struct finishing *p, attn_linear which) {
    const struct run *run = p->run;
    const struct model_array *arrays = run->model->arrays;
    const attn_model_info *info = &run->model->info;
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    const struct plan_layer *layer = &plan->layer;
    size_t query = p->at->first_query, key = p->at->first_key;
    bool of_queries = which == ATTN_QUERY, whole = info->head_norm.whole;
    struct row_set set = {.size = info->width.score,
                          .norms = info->head_norm.kind != ATTN_NORM_NONE,
                          .whole = whole,
                          .own = whole || info->head_norm.per_head,
                          .last = info->head_norm.last,
                          .norm = {.centred = info->head_norm.kind == ATTN_NORM_LAYER,
                                   .eps = info->head_norm.eps,
                                   .size = info->width.score},
                          .rotate = info->rotation.size > 0 ? rotate_apply : NULL};

    if (info->projection.clip_last)
        set.clip = (float)info->projection.clip;
    if (which == ATTN_VALUE) {
        set = find_value_set(p);
    } else if (of_queries) {
        set.rows = run->queries + query * layer->score_width;
        set.row_ld = layer->score_width;
        set.head_ld = set.size;
        set.heads = run->query_heads;
        set.norm.weight = arrays[MODEL_QUERY_NORM].numbers;
        set.norm.bias = arrays[MODEL_QUERY_NORM_BIAS].numbers;
        set.norm.size = whole ? layer->score_width : set.size;
        set.scaled = info->query_factor.length > 0;
    } else {
        set.rows = run->keys + p->at->first_projected * plan->keys.ld;
        set.row_ld = plan->keys.ld;
        set.head_ld = plan->keys.head_ld;
        set.heads = run->key_heads;
        set.norm.weight = arrays[MODEL_KEY_NORM].numbers;
        set.norm.bias = arrays[MODEL_KEY_NORM_BIAS].numbers;
        set.norm.size = whole ? layer->key_width : set.size;
    }
    set.positions = of_queries ? positions_from(request->positions, query)
                               : positions_from(request->key_positions, key);
    set.axes = of_queries ? axes_from(request->axis_positions, query)
                          : axes_from(request->axis_key_positions, key);
    set.count = (of_queries ? request->query_lens : request->key_lens)[p->at->sequence];
    return set;
}

/* Items are blocks of keys and values, then blocks of queries. */
static void finish_items(const struct run *run, const struct sequence_position *at,
                         struct range items, size_t thread) {
    const struct plan *plan = run->plan;
    size_t key_len = run->request->key_lens[at->sequence];
    size_t key_blocks = count_row_blocks(key_len),
           num_pairs = run->model->info.rotation.size / 2;
    float *rotation = run_thread(run, thread, run->thread.rotation);
    bool sections = model_has_sections(&run->model->info);
    struct finishing p = {.run = run, .at = at};

    p.rotation = find_rotation(run, at, (double *)(void *)rotation);
    rotation += 2 * num_pairs;
    rotate_init(&p.angles[0], &p.rotation, rotation);
    for (size_t axis = 1; sections && axis < ATTN_AXES; axis++)
        rotate_init(&p.angles[axis], &p.rotation,
                    rotation + axis * ROTATE_FLOATS(num_pairs));
    if (sections)
        rotate_init(&p.picked, &p.rotation,
                    rotation + ATTN_AXES * ROTATE_FLOATS(num_pairs));
    p.tile = run_thread(run, thread, run->thread.tile);
    const struct row_set keys = find_row_set(&p, ATTN_KEY),
                         queries = find_row_set(&p, ATTN_QUERY);
    const struct row_set values = find_row_set(&p, ATTN_VALUE);
    bool pairs = run->model->engine.kernels->pack_pairs_bf16 != NULL;

    for (size_t item = items.first; item < items.end; item++) {
        bool of_keys = item < key_blocks;
        bool of_values = of_keys && plan->layer.finishes_values;
        const struct row_set *rows = of_keys ? &keys : &queries;
        size_t all = of_keys ? key_len : run->request->query_lens[at->sequence];
        size_t first = (of_keys ? item : item - key_blocks) * KEY_BLOCK;
        size_t end = all - first < KEY_BLOCK ? all : first + KEY_BLOCK;

        for (size_t r = first; r < end; r++) {
            if (plan->batch.any_scores)
                finish_row(&p, rows, r);
            if (of_values)
                finish_row(&p, &values, r);
        }
        if (of_keys && plan->batch.any_scores && plan->layer.key_panels)
            store_panels(&p, rows, first, end - first);
        if (of_values && pairs)
            store_pairs(&p, &values, first, end - first);
    }
}

void run_finish_rows(const struct run *run) {
    const struct plan *plan = run->plan;
    size_t entries = plan->scratch.num_rotations * ROTATE_STEP;

    if (!plan->layer.finishes)
        return;
    if (plan->scratch.num_rotations > 0)
        share_tasks(run->request->parallel,
                    FILL_FLOPS * (double)(entries * run->model->info.rotation.size),
                    entries, fill_entry, (void *)(uintptr_t)run);
    run_items(run, plan->flops.finish, count_finish_items, finish_items);
}
