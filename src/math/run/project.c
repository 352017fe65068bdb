/* SPDX-License-Identifier: Apache-2.0 */
/* project.c: the projections, divided into strips of rows times panels of weights. With
 * kernels for bfloat16, or for pieces of it, the rows are converted first. */
#include "math/run/run.h"

#include "base/pace.h"
#include "base/size.h"
#include "math/rows/norm.h"

#include <string.h>

#define STRIP_ROWS_MAX 192 /* kernels->strip_rows of any set */
#define NORM_FLOPS     8   /* operations that take as long as norming a number */

/* Rows that are converted, normed or copied, strip by strip. */
struct row_pass {
    const float *from; /* [rows, width] */
    float *to;         /* [rows, to_ld] */
    size_t rows, width, to_ld;
    size_t strip_rows;
    const struct kernels *kernels; /* convert; NULL: they do not */
    struct ranges depth;           /* what of a row is converted, at least */
    struct magnitudes range;       /* of rows that are split */
    struct norm norm;              /* norms; without weights, it copies */
};

static void pass_strip(void *data, size_t index, size_t thread) {
    const struct row_pass *p = data;
    size_t first = index * p->strip_rows,
           count = size_min(p->rows - first, p->strip_rows);
    const float *from = p->from + first * p->width;
    float *to = p->to + first * p->to_ld;

    (void)thread;
    if (p->kernels != NULL && p->kernels->split != NULL)
        p->kernels->split(from, p->width, count, p->width, p->depth.items, p->depth.count,
                          &p->range, to, p->to_ld);
    else if (p->kernels != NULL)
        p->kernels->convert_bf16(from, p->width, count, p->width, to, p->to_ld);
    else if (p->norm.weight == NULL)
        memcpy(to, from, count * p->width * sizeof *to);
    for (size_t r = 0; p->norm.weight != NULL && r < count; r++)
        norm_row(&p->norm, from + r * p->width, to + r * p->to_ld);
}

/* Makes a pass, of so many operations for each number. */
static void run_pass(const struct run *run, double flops, struct row_pass *pass) {
    pass->strip_rows = run->model->engine.kernels->strip_rows;
    share_tasks(run->request->parallel, flops * (double)pass->rows * (double)pass->width,
                (pass->rows - 1) / pass->strip_rows + 1, pass_strip, pass);
}

/* One projection, of which some columns are wanted. */
struct projection {
    const struct linear *linear;
    float *y;
    struct ranges wanted; /* of heads, or of columns */
    size_t unit;          /* columns of a head, or 1 */
    size_t head_rows;     /* y is in [H][head_rows, unit]; or 0: in [rows, out] */
    bool key_panels;      /* y is keys in panels, and in words; see struct query_panel */
    size_t panels;        /* parts of engine_step() columns */
};

/* Up to three projections of the same rows. They are computed strip by strip, so that the
 * rows are read from memory once. */
struct projections {
    const struct engine *engine;
    const float *x;          /* [rows, in] */
    const attn_model *model; /* whose norm before the layer is applied; NULL: none is */
    float *normed;           /* where x goes then */
    float *converted;        /* where a part of x goes when engine_converts() */
    size_t x_ld;
    size_t rows;
    size_t strip_rows;   /* rows that are projected at a time */
    struct range part;   /* rows that are converted at a time; or all */
    const float *part_x; /* where they are */
    size_t part_ld;
    /* The sequences whose keys the rows are, and those after them. */
    const struct sequence_position *sequences;
    const size_t *key_lens; /* [num_sequences] */
    size_t num_sequences;
    struct ranges depth; /* words of a row that are summed */
    size_t count;
    struct projection items[3];
    size_t all_panels;
    double flops;
    size_t task_panels; /* panels in one task, which is of one projection */
    size_t strip_tasks; /* tasks of one strip */
};

/* Adds a projection to `y`, of which the columns of the heads in `wanted` are needed. */
static void add_projection(struct projections *p, const struct linear *linear, float *y,
                           struct ranges wanted, size_t unit, size_t head_rows) {
    double rows = (double)(p->rows < PLAN_ROWS_MIN ? PLAN_ROWS_MIN : p->rows);
    struct projection *item = &p->items[p->count++];
    size_t step = engine_step(p->engine, linear);

    *item = (struct projection){.linear = linear,
                                .y = y,
                                .wanted = wanted,
                                .unit = unit,
                                .head_rows = head_rows,
                                .panels = (linear->out + step - 1) / step};
    p->all_panels += item->panels;
    p->flops += 2 * rows * (double)ranges_total(p->depth) *
                (double)p->engine->kernels->k_step *
                (double)(ranges_total(wanted) * unit);
}

/* Returns how many tasks a projection has in one strip. */
static size_t projection_tasks(const struct projections *p,
                               const struct projection *item) {
    return (item->panels + p->task_panels - 1) / p->task_panels;
}

/* Returns the sequence that a row of keys is of. */
static size_t find_sequence_of_row(const struct projections *p, size_t row) {
    size_t key = p->sequences[0].first_key + row, low = 0, high = p->num_sequences;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (p->sequences[middle].first_key <= key)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Transposes words of rows of keys, some columns of a head, into the panels of their
 * sequences. `y` is where these columns would begin in a panel of one key that is the
 * first of all; a key has `words` in all. */
static void store_key_panels(const struct projections *p, const float *tile,
                             struct range rows, size_t width, size_t words,
                             size_t first_word, float *y) {
    size_t sequence = find_sequence_of_row(p, rows.first), row = rows.first;

    while (row < rows.end) {
        size_t start = p->sequences[sequence].first_key - p->sequences[0].first_key;
        size_t key_len = p->key_lens[sequence], key = row - start;
        size_t first = key / KEY_BLOCK * KEY_BLOCK, left = key_len - first;
        size_t panel_keys = left < KEY_BLOCK ? left : KEY_BLOCK;
        size_t end = start + first + panel_keys;
        size_t count = (end < rows.end ? end : rows.end) - row;
        p->engine->kernels->transpose(
            tile + (row - rows.first) * width, width, count, width,
            y + (start + first) * words + first_word * panel_keys + key - first,
            panel_keys);
        row += count;
        sequence += row == start + key_len;
        pace_add(1);
    }
}

/* Returns how many rows the strip that begins at row `first` has. */
static size_t strip_rows(const struct projections *p, size_t first) {
    return size_min(p->rows - first, p->strip_rows);
}

/* Projects a strip of rows. */
static void project_strip(const struct projections *p, const struct projection *item,
                          struct range columns, size_t first_row, float *y, size_t y_ld) {
    const float *x = p->part_x + (first_row - p->part.first) * p->part_ld;

    (p->engine->kernels->split != NULL && p->engine->native ? engine_project_split
                                                            : engine_project)(
        p->engine, item->linear, columns, p->depth.items, p->depth.count, x, p->part_ld,
        strip_rows(p, first_row), y, y_ld);
}

/* Computes some columns of a strip of keys: a panel of weights at a time, whose results
 * stay in the first-level cache until they are transposed. */
static void project_key_panels(const struct projections *p, const struct projection *item,
                               struct range columns, size_t first_row) {
    const struct kernels *kernels = p->engine->kernels;
    size_t step = kernels->columns, width = step / kernels->k_step;
    size_t words = item->unit / kernels->k_step, count = strip_rows(p, first_row);
    const struct range rows = {first_row, first_row + count};
    float tile[STRIP_ROWS_MAX * KERNEL_COLUMNS_MAX];

    for (; columns.first < columns.end; columns.first += step) {
        size_t head = columns.first / item->unit;
        size_t first_word = columns.first % item->unit / kernels->k_step;
        project_strip(p, item, (struct range){columns.first, columns.first + step},
                      first_row, tile - columns.first, step);
        if (kernels->convert_bf16 != NULL)
            kernels->convert_bf16(tile, step, count, step, tile, width);
        store_key_panels(p, tile, rows, width, words, first_word,
                         item->y + head * item->head_rows * words);
    }
}

/* Computes some columns of a strip. Where each head has its own part of y, they are
 * computed head by head. */
static void project_columns(const struct projections *p, const struct projection *item,
                            struct range columns, size_t first_row) {
    size_t y_ld = item->head_rows > 0 ? item->unit : item->linear->out;

    while (columns.first < columns.end) {
        struct range part = columns;
        float *y = item->y + first_row * y_ld;

        if (item->head_rows > 0) {
            size_t head = part.first / item->unit;
            part.end = size_min((head + 1) * item->unit, columns.end);
            /* Where column 0 would be, if the head had the columns before it too. */
            y += head * (item->head_rows - 1) * item->unit;
        }
        project_strip(p, item, part, first_row, y, y_ld);
        columns.first = part.end;
    }
}

/* Computes the wanted columns of a task; whole panels with the native engine. */
static void project_task(void *data, size_t index, size_t thread) {
    const struct projections *p = data;
    const struct projection *item = p->items;
    size_t first_row = p->part.first + index / p->strip_tasks * p->strip_rows;
    size_t task = index % p->strip_tasks;

    (void)thread;
    for (; task >= projection_tasks(p, item); item++)
        task -= projection_tasks(p, item);

    size_t out = item->linear->out, step = engine_step(p->engine, item->linear);
    size_t next = task * p->task_panels * step;
    size_t end = size_min(next + p->task_panels * step, out);
    for (size_t i = 0; i < item->wanted.count && next < end; i++) {
        size_t first = item->wanted.items[i].first * item->unit;
        size_t last = item->wanted.items[i].end * item->unit;
        if (p->engine->native) {
            first = first / step * step;
            last = (last + step - 1) / step * step;
        }
        struct range columns = {first > next ? first : next, last < end ? last : end};
        if (columns.first >= columns.end)
            continue;
        if (item->key_panels)
            project_key_panels(p, item, columns, first_row);
        else
            project_columns(p, item, columns, first_row);
        next = columns.end;
    }
}

/* Applies the norm before the layer to x. */
static void norm_input(const struct run *run, struct projections *p) {
    const attn_model_info *info = &p->model->info;
    struct row_pass pass = {
        .from = p->x,
        .to = p->normed,
        .rows = p->rows,
        .width = p->x_ld,
        .to_ld = p->x_ld,
        .norm = {info->pre_norm.kind == ATTN_NORM_LAYER, info->pre_norm.eps,
                 p->model->pre_norm_weight, p->model->pre_norm_bias, p->x_ld},
    };

    run_pass(run, NORM_FLOPS, &pass);
    p->x = pass.to;
}

/* Converts the part of x to bfloat16, or to pieces of it. */
static void convert_part(const struct run *run, struct projections *p) {
    struct row_pass pass = {
        .from = p->part_x,
        .to = p->converted,
        .rows = p->part.end - p->part.first,
        .width = p->x_ld,
        .to_ld = plan_converted_ld(p->engine->kernels, p->x_ld),
        .kernels = p->engine->kernels,
        .depth = p->depth,
        .range = p->engine->split_range,
    };

    run_pass(run, RUN_CONVERT_FLOPS, &pass);
    p->part_x = pass.to;
    p->part_ld = pass.to_ld;
}

/* Projects a part of the rows. */
static void project_part(const struct run *run, struct projections *p) {
    size_t rows = p->part.end - p->part.first, strips = (rows - 1) / p->strip_rows + 1;

    p->part_x = p->x + p->part.first * p->x_ld;
    p->part_ld = p->x_ld;
    if (engine_converts(p->engine))
        convert_part(run, p);
    share_tasks(run->request->parallel, p->flops * (double)rows / (double)p->rows,
                strips * p->strip_tasks, project_task, p);
}

static void run_projections(const struct run *run, struct projections *p) {
    size_t strips = (p->rows - 1) / p->strip_rows + 1;
    size_t part = engine_converts(p->engine)
                      ? plan_converted_rows(run->plan, p->strip_rows)
                      : p->rows;

    /* Large tasks for one thread, but not too long; enough of them for several. */
    p->task_panels =
        share_task_items(strips * p->all_panels, p->flops, run->plan->num_threads);
    p->task_panels = size_min(p->task_panels, p->engine->kernels->strip_panels);
    for (size_t i = 0; i < p->count; i++)
        p->strip_tasks += projection_tasks(p, &p->items[i]);
    p->x_ld = p->items[0].linear->in;
    if (p->model != NULL)
        norm_input(run, p);
    for (; p->part.first < p->rows; p->part.first = p->part.end) {
        p->part.end = size_min(p->part.first + part, p->rows);
        project_part(run, p);
    }
}

/* Returns no projections yet, of the inputs `x`, with the norm before the layer or
 * without. */
static struct projections project_from(const struct run *run, const float *x, size_t rows,
                                       const struct range *depth, bool norm) {
    return (struct projections){.engine = &run->model->engine,
                                .x = x,
                                .model = norm ? run->model : NULL,
                                .normed = run->normed,
                                .converted = run->converted,
                                .rows = rows,
                                .strip_rows = run->model->engine.kernels->strip_rows,
                                .depth = {depth, 1}};
}

/* Returns all words of a row of `in` numbers. */
static struct range all_words(const struct engine *engine, size_t in) {
    size_t k_step = engine->kernels->k_step;
    return (struct range){0, (in + k_step - 1) / k_step};
}

/* Projects the first rows of queries, and some rows of keys and values, which are those
 * of `sequence` and the next ones. Inputs that are the same tensor go together. */
static void project_rows(const struct run *run, size_t num_queries, struct range keys,
                         size_t sequence) {
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    const attn_request *request = run->request;
    size_t score_size = engine->score_size, head_size = run->model->info.width.head;
    size_t num_keys = keys.end - keys.first;
    size_t first_key = run->sequences[sequence].first_projected;
    size_t head_rows = plan->layer.by_head ? plan->batch.projected_keys : 0;
    const struct range query_words = all_words(engine, engine->to_query.in),
                       key_words = all_words(engine, engine->to_key.in),
                       value_words = all_words(engine, engine->to_value.in);
    struct projections of_queries =
        project_from(run, request->queries, num_queries, &query_words,
                     run->model->info.pre_norm.applied);
    struct projections of_keys =
        project_from(run, request->keys + keys.first * engine->to_key.in, num_keys,
                     &key_words, plan->layer.norms_keys);
    struct projections of_values =
        project_from(run, request->values + keys.first * engine->to_value.in, num_keys,
                     &value_words, plan->layer.norms_keys);

    bool same_keys = request->keys == request->queries && num_keys == num_queries &&
                     engine->to_key.in == engine->to_query.in &&
                     of_keys.model == of_queries.model;
    bool same_values =
        request->values == request->keys && engine->to_value.in == engine->to_key.in;
    struct projections *with_keys = same_keys ? &of_queries : &of_keys;
    struct projections *with_values = same_values ? with_keys : &of_values;
    if (num_queries > 0 && plan->batch.any_scores)
        add_projection(&of_queries, &engine->to_query, run->queries, run->query_heads,
                       score_size, 0);
    if (num_keys > 0 && plan->batch.any_scores) {
        add_projection(with_keys, &engine->to_key, run->keys + first_key * plan->keys.ld,
                       run->key_heads, score_size, head_rows);
        with_keys->items[with_keys->count - 1].key_panels =
            plan->layer.key_panels && !plan->layer.finishes;
        with_keys->sequences = run->sequences + sequence;
        with_keys->key_lens = request->key_lens + sequence;
        with_keys->num_sequences = request->num_sequences - sequence;
    }
    if (num_keys > 0 && plan->layer.sums)
        add_projection(with_values, &engine->to_value,
                       run->values + first_key * plan->values.ld, run->summed_keys,
                       head_size, head_rows);

    if (of_queries.count > 0)
        run_projections(run, &of_queries);
    if (of_keys.count > 0)
        run_projections(run, &of_keys);
    if (of_values.count > 0)
        run_projections(run, &of_values);
}

void run_project_inputs(const struct run *run) {
    const attn_request *request = run->request;
    const struct sequence_position *at = run->sequences;
    size_t num_queries = run->plan->sizes.num_queries, end;

    /* With direct sequences, as many others as follow each other go together. */
    if (run->plan->batch.num_direct > 0) {
        project_rows(run, num_queries, (struct range){0, 0}, 0);
        num_queries = 0;
    }
    for (size_t first = 0; first < request->num_sequences; first = end) {
        struct range keys = {at[first].first_key, at[first].first_key};
        for (end = first; end < request->num_sequences; end++) {
            pace_add(1);
            if (at[end].kind == SEQUENCE_DIRECT)
                break;
            keys.end += request->key_lens[end];
        }
        if (end > first)
            project_rows(run, num_queries, keys, first);
        end += end < request->num_sequences; /* past the direct one */
    }
}

void run_copy_heads(const struct run *run, float *heads) {
    size_t hidden = run->plan->layer.hidden;
    struct row_pass pass = {.from = run->context,
                            .to = heads,
                            .rows = run->plan->sizes.num_queries,
                            .width = hidden,
                            .to_ld = hidden};

    run_pass(run, 1, &pass);
}

void run_project_outputs(const struct run *run, float *outputs) {
    const struct engine *engine = &run->model->engine;
    const struct range all = {0, engine->to_output.out};
    struct projections p = {.engine = engine,
                            .x = run->context,
                            .converted = run->converted,
                            .rows = run->plan->sizes.num_queries,
                            .strip_rows = engine->kernels->strip_rows,
                            .depth = run->summed_words};

    add_projection(&p, &engine->to_output, outputs, (struct ranges){&all, 1}, 1, 0);
    run_projections(run, &p);
}
