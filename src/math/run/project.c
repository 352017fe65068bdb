/* SPDX-License-Identifier: Apache-2.0 */
/* project.c: the projections, divided into strips of rows times panels of weights. With
 * kernels for bfloat16, or for pieces of it, the rows are converted first. */
#include "math/run/run.h"

#include "base/pace.h"
#include "base/size.h"
#include "math/rows/norm.h"
#include "math/run/pass.h"
#include "math/run/store.h"

#define STRIP_ROWS_MAX 192 /* kernels->strip_rows of any set */
#define NORM_FLOPS     8   /* operations that take as long as norming a number */

/* One projection, of which some columns are wanted. */
struct projection {
    const struct linear *linear;
    struct ranges wanted; /* of heads, or of columns */
    struct store_place place;
    enum {
        PLACE_ROWS,
        PLACE_KEY_PANELS,
        PLACE_VALUE_PAIRS
    } form;        /* how they lie there */
    float clip;    /* the largest magnitude of a result; 0: they are not clipped */
    size_t panels; /* parts of engine_step() columns */
};

/* Up to four projections of the same rows. They are computed strip by strip, so that the
 * rows are read from memory once. */
struct projections {
    const struct engine *engine;
    const float *x;          /* [rows, in] */
    const attn_model *model; /* whose norm before the layer is applied; NULL: none is */
    float *normed;           /* where x goes then */
    const struct linear
        *latent;             /* makes the latent rows that are projected; NULL: none */
    struct norm latent_norm; /* of their first numbers */
    float *converted;        /* where a part of x goes when engine_converts() */
    size_t x_ld;
    size_t rows;
    size_t strip_rows;   /* rows that are projected at a time */
    struct range part;   /* rows that are converted at a time; or all */
    const float *part_x; /* where they are */
    size_t part_ld;
    struct store_rows stored; /* what the rows are, if they are keys or values */
    struct ranges depth;      /* words of a row that are summed */
    size_t count;
    struct projection items[4];
    size_t all_panels;
    double flops;
    size_t task_panels; /* panels in one task, which is of one projection */
    size_t strip_tasks; /* tasks of one strip */
};

/* Adds a projection of the same rows; counts its panels. */
static void add_projection(struct projections *p, const struct projection *projection) {
    double rows = (double)(p->rows < PLAN_ROWS_MIN ? PLAN_ROWS_MIN : p->rows);
    struct projection *item = &p->items[p->count++];
    size_t step = engine_step(p->engine, projection->linear);

    *item = *projection;
    item->panels = (item->linear->out + step - 1) / step;
    p->all_panels += item->panels;
    p->flops += 2 * rows * (double)ranges_total(p->depth) *
                (double)p->engine->kernels->k_step *
                (double)(ranges_total(item->wanted) * item->place.unit);
}

/* Returns how many tasks a projection has in one strip. */
static size_t projection_tasks(const struct projections *p,
                               const struct projection *item) {
    return (item->panels + p->task_panels - 1) / p->task_panels;
}

/* Returns how many rows the strip that begins at row `first` has. */
static size_t strip_rows(const struct projections *p, size_t first) {
    return size_min(p->rows - first, p->strip_rows);
}

/* Projects a strip of rows, and clips the results. */
static void project_strip(const struct projections *p, const struct projection *item,
                          struct range columns, size_t first_row, float *y, size_t y_ld) {
    const float *x = p->part_x + (first_row - p->part.first) * p->part_ld;
    size_t rows = strip_rows(p, first_row), width = columns.end - columns.first;

    (p->engine->kernels->split != NULL && p->engine->native
         ? engine_project_split
         : engine_project)(p->engine, item->linear, columns, p->depth.items,
                           p->depth.count, x, p->part_ld, rows, y, y_ld);
    for (size_t r = 0; item->clip > 0.0F && r < rows; r++)
        norm_clip(item->clip, width, y + r * y_ld + columns.first);
}

/* Computes some columns of a strip that the kernels read in another layout: a panel of
 * weights at a time, whose results stay in the first-level cache until they are moved. */
static void project_moved(const struct projections *p, const struct projection *item,
                          struct range columns, size_t first_row) {
    const struct range rows = {first_row, first_row + strip_rows(p, first_row)};
    size_t step = p->engine->kernels->columns;
    float tile[STRIP_ROWS_MAX * KERNEL_COLUMNS_MAX];

    for (; columns.first < columns.end; columns.first += step) {
        const struct range part = {columns.first,
                                   size_min(columns.first + step, columns.end)};
        project_strip(p, item, part, first_row, tile - part.first, step);
        if (item->form == PLACE_KEY_PANELS)
            store_key_panels(&p->stored, &item->place, part.first, rows, tile);
        else
            store_value_pairs(&p->stored, &item->place, part, rows, tile);
    }
}

/* Computes some columns of a strip. Where each head has its own part of y, they are
 * computed head by head. */
static void project_columns(const struct projections *p, const struct projection *item,
                            struct range columns, size_t first_row) {
    size_t y_ld = item->place.ld;

    while (columns.first < columns.end) {
        struct range part = columns;
        float *y = item->place.y + first_row * y_ld;

        if (item->place.head_rows > 0) {
            size_t head = part.first / item->place.unit;
            part.end = size_min((head + 1) * item->place.unit, columns.end);
            /* Where column 0 would be, if the head had the columns before it too. */
            y += head * (item->place.head_rows - 1) * item->place.unit;
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
        size_t first = item->wanted.items[i].first * item->place.unit;
        size_t last = item->wanted.items[i].end * item->place.unit;
        if (p->engine->native) {
            first = first / step * step;
            last = (last + step - 1) / step * step;
        }
        struct range columns = {first > next ? first : next, last < end ? last : end};
        if (columns.first >= columns.end)
            continue;
        if (item->form != PLACE_ROWS)
            project_moved(p, item, columns, first_row);
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
                 p->model->arrays[MODEL_PRE_NORM].numbers,
                 p->model->arrays[MODEL_PRE_NORM_BIAS].numbers, p->x_ld},
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
    for (; p->part.first < p->rows; p->part.first = p->part.end) {
        p->part.end = size_min(p->part.first + part, p->rows);
        project_part(run, p);
    }
}

/* Returns all words of a row of `in` numbers. */
static struct range all_words(const struct engine *engine, size_t in) {
    size_t k_step = engine->kernels->k_step;
    return (struct range){0, (in + k_step - 1) / k_step};
}

/* Makes latent rows of x, and norms their first numbers. */
static void make_latents(const struct run *run, struct projections *p) {
    const struct range words = all_words(p->engine, p->latent->in);
    struct row_pass pass = {
        .from = run->latents,
        .to = run->latents,
        .rows = p->rows,
        .width = p->latent->out,
        .to_ld = p->latent->out,
        .norm = p->latent_norm,
    };

    run_project_rows(run, p->latent, p->x, p->rows, (struct ranges){&words, 1},
                     run->latents, p->latent->out);
    run_pass(run, NORM_FLOPS, &pass);
    p->x = run->latents;
    p->x_ld = p->latent->out;
}

/* Makes what is projected from the inputs, and projects it. */
static void project_inputs(const struct run *run, struct projections *p) {
    if (p->count == 0)
        return;
    if (p->model != NULL)
        norm_input(run, p);
    if (p->latent != NULL)
        make_latents(run, p);
    run_projections(run, p);
}

/* Returns no projections yet, of the inputs `x` [rows, in], with the norm before the
 * layer or without. Those of keys or values begin with a sequence. */
static struct projections project_from(const struct run *run, const float *x, size_t rows,
                                       size_t in, const struct range *depth, bool norm,
                                       size_t sequence) {
    return (struct projections){.engine = &run->model->engine,
                                .x = x,
                                .model = norm ? run->model : NULL,
                                .normed = run->normed,
                                .converted = run->converted,
                                .x_ld = in,
                                .rows = rows,
                                .strip_rows = run->model->engine.kernels->strip_rows,
                                .stored = {run->model->engine.kernels,
                                           run->sequences + sequence,
                                           run->request->key_lens + sequence,
                                           run->request->num_sequences - sequence},
                                .depth = {depth, 1}};
}

/* Returns the clip of queries and keys as they are projected; 0: none. */
static float find_first_clip(const attn_model_info *info) {
    return info->projection.clip_last ? 0.0F : (float)info->projection.clip;
}

/* Adds the projection of queries. */
static void add_queries(const struct run *run, struct projections *p) {
    const struct engine *engine = &run->model->engine;

    add_projection(p, &(struct projection){
                          .linear = &engine->linears[ATTN_QUERY],
                          .wanted = run->query_heads,
                          .place = {run->queries, engine->score_size, 0,
                                    run->plan->layer.score_width},
                          .clip = find_first_clip(&run->model->info),
                      });
}

/* Adds the projection of queries to the gates of the heads that are summed. */
static void add_gates(const struct run *run, struct projections *p) {
    const attn_model *model = run->model;

    add_projection(
        p, &(struct projection){
               .linear = &model->engine.linears[ATTN_GATE],
               .wanted = run->summed,
               .place = {run->gates, model->info.width.head, 0, run->plan->layer.hidden},
           });
}

/* Adds the projection of keys, which begin with those of a sequence. */
static void add_keys(const struct run *run, const struct sequence_position *at,
                     struct projections *p) {
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    bool panels = plan->layer.key_panels && !plan->layer.finishes;

    add_projection(p, &(struct projection){
                          .linear = &engine->linears[ATTN_KEY],
                          .wanted = run->key_heads,
                          .place = {run->keys + at->first_projected * plan->keys.ld,
                                    engine->score_size,
                                    plan->layer.by_head ? plan->batch.projected_keys : 0,
                                    plan->keys.ld},
                          .form = panels ? PLACE_KEY_PANELS : PLACE_ROWS,
                          .clip = find_first_clip(&run->model->info),
                      });
}

/* Adds the projection of values, which begin with those of a sequence. */
static void add_values(const struct run *run, const struct sequence_position *at,
                       struct projections *p) {
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t first = plan_value_row(engine->kernels, at), ld = plan->values.ld;
    size_t head_rows = plan->batch.value_rows;
    float *y = run->values + first * ld;
    bool as_rows = engine->kernels->pack_pairs_bf16 == NULL;

    if (plan->layer.finishes_values) {
        as_rows = true;
        head_rows = plan->batch.projected_keys;
        y = run->value_rows + at->first_projected * ld;
    }
    add_projection(p, &(struct projection){
                          .linear = &engine->linears[ATTN_VALUE],
                          .wanted = run->summed_keys,
                          .place = {y, run->model->info.width.head,
                                    plan->layer.by_head ? head_rows : 0, ld},
                          .form = as_rows ? PLACE_ROWS : PLACE_VALUE_PAIRS,
                          .clip = (float)run->model->info.projection.clip,
                      });
}

/* Sets the latent rows that queries, or keys and values, are projected from, if any. */
static void add_latents(const struct run *run, bool keys, struct projections *p) {
    const attn_model *model = run->model;
    const struct engine *engine = &model->engine;
    const struct linear *linear =
        keys ? &engine->linears[ATTN_LATENT_KEY] : &engine->linears[ATTN_LATENT_QUERY];

    if (linear->out == 0)
        return;
    p->latent = linear;
    p->latent_norm =
        (struct norm){.eps = model->info.latent.eps,
                      .weight = keys ? model->arrays[MODEL_LATENT_KEY_NORM].numbers
                                     : model->arrays[MODEL_LATENT_QUERY_NORM].numbers,
                      .size = linear->out - (keys ? model->info.latent.shared : 0)};
}

/* Projects the first rows of queries, and some rows of keys and values, which are those
 * of `sequence` and the next ones. Inputs that are the same tensor go together. */
static void project_rows(const struct run *run, size_t num_queries, struct range keys,
                         size_t sequence) {
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    const attn_request *request = run->request;
    const struct sequence_position *at = &run->sequences[sequence];
    size_t query_size = run->model->info.width.query,
           key_size = run->model->info.width.key;
    size_t value_size = run->model->info.width.value;
    size_t num_keys = keys.end - keys.first;
    const struct range query_words = all_words(engine, engine->linears[ATTN_QUERY].in),
                       key_words = all_words(engine, engine->linears[ATTN_KEY].in),
                       value_words = all_words(engine, engine->linears[ATTN_VALUE].in);
    struct projections of_queries =
        project_from(run, request->queries, num_queries, query_size, &query_words,
                     run->model->info.pre_norm.applied, sequence);
    struct projections of_keys =
        project_from(run, request->keys + keys.first * key_size, num_keys, key_size,
                     &key_words, plan->layer.norms_keys, sequence);
    struct projections of_values =
        project_from(run, request->values + keys.first * value_size, num_keys, value_size,
                     &value_words, plan->layer.norms_keys, sequence);

    add_latents(run, false, &of_queries);
    add_latents(run, true, &of_keys);
    add_latents(run, true, &of_values);
    bool same_keys = request->keys == request->queries && num_keys == num_queries &&
                     key_size == query_size && of_keys.model == of_queries.model &&
                     of_keys.latent == of_queries.latent;
    bool same_values = request->values == request->keys && value_size == key_size;
    struct projections *with_keys = same_keys ? &of_queries : &of_keys;
    struct projections *with_values = same_values ? with_keys : &of_values;
    if (num_queries > 0 && plan->batch.any_scores)
        add_queries(run, &of_queries);
    if (num_queries > 0 && plan->layer.gates)
        add_gates(run, &of_queries);
    if (num_keys > 0 && plan->batch.any_scores)
        add_keys(run, at, with_keys);
    if (num_keys > 0 && plan->layer.sums)
        add_values(run, at, with_values);

    project_inputs(run, &of_queries);
    project_inputs(run, &of_keys);
    project_inputs(run, &of_values);
}

void run_project_inputs(const struct run *run) {
    const attn_request *request = run->request;
    const struct sequence_position *at = run->sequences;
    size_t num_queries = run->plan->batch.num_queries, end;

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

/* Projects x [rows, in], in all columns, to y. Keys and values share norm and latents. */
static void write_projection(const struct run *run, attn_linear which, const float *x,
                             size_t rows, float *y) {
    const struct linear *linear = &run->model->engine.linears[which];
    const attn_model_info *info = &run->model->info;
    bool keys = which != ATTN_QUERY;
    bool norm = keys ? run->plan->layer.norms_keys : info->pre_norm.applied;
    size_t in = keys ? info->width.key : info->width.query;
    const struct range words = all_words(&run->model->engine, linear->in),
                       all = {0, linear->out};
    in = which == ATTN_VALUE ? info->width.value : in;
    struct projections p = project_from(run, x, rows, in, &words, norm, 0);
    add_latents(run, keys, &p);
    add_projection(&p, &(struct projection){.linear = linear,
                                            .wanted = {&all, 1},
                                            .place = {y, 1, 0, linear->out},
                                            .clip = which == ATTN_VALUE
                                                        ? (float)info->projection.clip
                                                        : find_first_clip(info)});
    project_inputs(run, &p);
}

void run_write_projections(const struct run *run, const attn_result *result) {
    const attn_request *request = run->request;
    size_t keys = run->plan->batch.num_keys;

    write_projection(run, ATTN_QUERY, request->queries, run->plan->batch.num_queries,
                     result->projected_queries);
    write_projection(run, ATTN_KEY, request->keys, keys, result->projected_keys);
    write_projection(run, ATTN_VALUE, request->values, keys, result->projected_values);
}

void run_project_rows(const struct run *run, const struct linear *linear, const float *x,
                      size_t rows, struct ranges words, float *y, size_t y_ld) {
    const struct engine *engine = &run->model->engine;
    const struct range all = {0, linear->out};
    struct projections p = {.engine = engine,
                            .x = x,
                            .converted = run->converted,
                            .x_ld = linear->in,
                            .rows = rows,
                            .strip_rows = engine->kernels->strip_rows,
                            .depth = words};

    add_projection(&p, &(struct projection){.linear = linear,
                                            .wanted = {&all, 1},
                                            .place = {y, 1, 0, y_ld}});
    run_projections(run, &p);
}
