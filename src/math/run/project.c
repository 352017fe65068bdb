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
    size_t tasks;  /* of these, in one strip */
};

/* Up to four projections of the same rows. They are computed strip by strip, so that the
 * rows are read from memory once. */
struct projections {
    const struct run *run;
    const struct engine *engine;
    const float *x; /* [rows, x_ld] */
    size_t rows, x_ld;
    bool norms;                  /* the norm before the layer is applied first */
    const struct linear *latent; /* then makes the latent rows of x; NULL: none */
    struct norm latent_norm;     /* of their first numbers */
    struct range part;           /* rows that are converted at a time; or all */
    const float *part_x;         /* where they are */
    size_t part_ld;
    struct store_rows stored; /* what the rows are, if they are keys or values */
    struct range words;       /* of a row */
    struct ranges depth;      /* those that are summed */
    size_t count;
    struct projection items[4];
    size_t all_panels;
    double flops;
    size_t task_panels; /* panels in one task, which is of one projection */
    size_t strip_tasks; /* tasks of one strip */
};

/* --- tasks --- */

/* Computes some columns of a strip of rows, and clips them: a head at a time where each
 * has its own part of y. Where the kernels read another layout, a panel of weights at a
 * time, whose results stay in the first-level cache until they are moved. */
static void project_columns(const struct projections *p, const struct projection *item,
                            struct range columns, struct range rows) {
    const struct engine *engine = p->engine;
    const struct store_place *place = &item->place;
    bool moved = item->form != PLACE_ROWS, split = engine->kernels->split != NULL;
    const float *x = p->part_x + (rows.first - p->part.first) * p->part_ld;
    size_t count = rows.end - rows.first, step = engine->kernels->columns;
    size_t y_ld = moved ? step : place->ld;
    float tile[STRIP_ROWS_MAX * KERNEL_COLUMNS_MAX];

    for (struct range part = columns; part.first < columns.end; part.first = part.end) {
        float *y = moved ? tile - part.first : place->y + rows.first * y_ld;
        part.end = columns.end;
        if (moved) {
            part.end = size_min(part.first + step, part.end);
        } else if (place->head_rows > 0) {
            size_t head = part.first / place->unit;
            part.end = size_min((head + 1) * place->unit, part.end);
            /* Where column 0 would be, if the head had the columns before it too. */
            y += head * (place->head_rows - 1) * place->unit;
        }
        engine_project(engine, item->linear, part, p->depth.items, p->depth.count, x,
                       p->part_ld, split, count, y, y_ld);
        for (size_t r = 0; item->clip > 0.0F && r < count; r++)
            norm_clip(item->clip, part.end - part.first, y + r * y_ld + part.first);
        if (item->form == PLACE_KEY_PANELS)
            store_key_panels(&p->stored, place, part.first, rows, tile);
        else if (moved)
            store_value_pairs(&p->stored, place, part, rows, tile);
    }
}

/* Computes the wanted columns of a task; whole panels with the native engine. */
static void project_task(void *data, size_t index, size_t thread) {
    const struct projections *p = data;
    const struct projection *item = p->items;
    size_t strip_rows = p->engine->kernels->strip_rows, task = index % p->strip_tasks;
    size_t row = p->part.first + index / p->strip_tasks * strip_rows;
    const struct range rows = {row, size_min(row + strip_rows, p->rows)};

    (void)thread;
    for (; task >= item->tasks; item++)
        task -= item->tasks;

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
        struct range columns = {size_max(first, next), size_min(last, end)};
        if (columns.first >= columns.end)
            continue;
        project_columns(p, item, columns, rows);
        next = columns.end;
    }
}

/* --- rows --- */

/* Applies the norm before the layer to x. */
static void norm_input(struct projections *p) {
    const attn_model *model = p->run->model;
    const attn_model_info *info = &model->info;
    struct row_pass pass = {
        .from = p->x,
        .to = p->run->normed,
        .rows = p->rows,
        .width = p->x_ld,
        .to_ld = p->x_ld,
        .norm = {info->pre_norm.kind == ATTN_NORM_LAYER, info->pre_norm.eps,
                 model->arrays[MODEL_PRE_NORM].numbers,
                 model->arrays[MODEL_PRE_NORM_BIAS].numbers, p->x_ld},
    };

    run_pass(p->run, NORM_FLOPS, &pass);
    p->x = pass.to;
}

/* Makes latent rows of x, and norms their first numbers. */
static void make_latents(struct projections *p) {
    const struct linear *latent = p->latent;
    size_t k_step = p->engine->kernels->k_step;
    const struct range words = {0, (latent->in + k_step - 1) / k_step};
    struct row_pass pass = {
        .from = p->run->latents,
        .to = p->run->latents,
        .rows = p->rows,
        .width = latent->out,
        .to_ld = latent->out,
        .norm = p->latent_norm,
    };

    run_project_rows(p->run, latent, p->x, p->rows, (struct ranges){&words, 1}, pass.to,
                     latent->out);
    run_pass(p->run, NORM_FLOPS, &pass);
    p->x = pass.to;
    p->x_ld = latent->out;
}

/* Converts the part of x to bfloat16, or to pieces of it. */
static void convert_part(struct projections *p) {
    struct row_pass pass = {
        .from = p->part_x,
        .to = p->run->converted,
        .rows = p->part.end - p->part.first,
        .width = p->x_ld,
        .to_ld = plan_converted_ld(p->engine->kernels, p->x_ld),
        .kernels = p->engine->kernels,
        .depth = p->depth,
        .range = p->engine->split_range,
    };

    run_pass(p->run, RUN_CONVERT_FLOPS, &pass);
    p->part_x = pass.to;
    p->part_ld = pass.to_ld;
}

/* --- projections --- */

/* Adds a projection of the same rows; counts its panels. */
static void add_projection(struct projections *p, const struct projection *projection) {
    double rows = (double)size_max(p->rows, PLAN_ROWS_MIN);
    struct projection *item = &p->items[p->count++];
    size_t step = engine_step(p->engine, projection->linear);

    *item = *projection;
    item->panels = (item->linear->out + step - 1) / step;
    p->all_panels += item->panels;
    p->flops += 2 * rows * (double)ranges_total(p->depth) *
                (double)p->engine->kernels->k_step *
                (double)(ranges_total(item->wanted) * item->place.unit);
}

/* Computes all projections of x as it is. */
static void run_projections(struct projections *p) {
    const struct run *run = p->run;
    const struct kernels *kernels = p->engine->kernels;
    bool converts = engine_converts(p->engine);
    size_t strip_rows = kernels->strip_rows, strips = (p->rows - 1) / strip_rows + 1;
    size_t part_rows = converts ? plan_converted_rows(run->plan, strip_rows) : p->rows;

    /* Large tasks for one thread, but not too long; enough of them for several. */
    p->task_panels = size_min(
        share_task_items(strips * p->all_panels, p->flops, run->plan->num_threads),
        kernels->strip_panels);
    for (size_t i = 0; i < p->count; i++) {
        p->items[i].tasks = (p->items[i].panels - 1) / p->task_panels + 1;
        p->strip_tasks += p->items[i].tasks;
    }

    for (; p->part.first < p->rows; p->part.first = p->part.end) {
        p->part.end = size_min(p->part.first + part_rows, p->rows);
        size_t rows = p->part.end - p->part.first;
        p->part_x = p->x + p->part.first * p->x_ld;
        p->part_ld = p->x_ld;
        if (converts)
            convert_part(p);
        share_tasks(run->request->parallel, p->flops * (double)rows / (double)p->rows,
                    ((rows - 1) / strip_rows + 1) * p->strip_tasks, project_task, p);
    }
}

/* Makes what is projected from the inputs, and projects it. */
static void project_inputs(struct projections *p) {
    if (p->count == 0)
        return;
    if (p->norms)
        norm_input(p);
    if (p->latent != NULL)
        make_latents(p);
    run_projections(p);
}

/* Begins with the inputs `x` of queries, keys or values, and no projection of them yet.
 * Keys and values share norm and latent rows; theirs begin with a sequence. */
static void begin_inputs(const struct run *run, attn_linear which, const float *x,
                         size_t rows, size_t sequence, struct projections *p) {
    const attn_model *model = run->model;
    const attn_model_info *info = &model->info;
    const struct engine *engine = &model->engine;
    bool keys = which != ATTN_QUERY;
    size_t k_step = engine->kernels->k_step, in = engine->linears[which].in;
    const struct linear *latent =
        &engine->linears[keys ? ATTN_LATENT_KEY : ATTN_LATENT_QUERY];
    const size_t widths[] = {[ATTN_QUERY] = info->width.query,
                             [ATTN_KEY] = info->width.key,
                             [ATTN_VALUE] = info->width.value};

    *p = (struct projections){
        .run = run,
        .engine = engine,
        .x = x,
        .rows = rows,
        .x_ld = widths[which],
        .norms = keys ? run->plan->layer.norms_keys : info->pre_norm.applied,
        .latent = latent->out > 0 ? latent : NULL,
        .latent_norm =
            {.eps = info->latent.eps,
             .weight =
                 model->arrays[keys ? MODEL_LATENT_KEY_NORM : MODEL_LATENT_QUERY_NORM]
                     .numbers,
             .size = latent->out - (keys ? info->latent.shared : 0)},
        .stored = {engine->kernels, run->sequences + sequence,
                   run->request->key_lens + sequence,
                   run->request->num_sequences - sequence},
        .words = {0, (in + k_step - 1) / k_step},
        .depth = {&p->words, 1}};
}

/* Describes the projection of queries, gates, keys or values: the heads that are wanted,
 * and where they go. Those of keys and values begin with a sequence. */
static struct projection describe_projection(const struct run *run, attn_linear which,
                                             const struct sequence_position *at) {
    const attn_model_info *info = &run->model->info;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    const struct plan_layer *layer = &plan->layer;
    size_t key_ld = plan->keys.ld, value_ld = plan->values.ld;
    size_t score_size = engine->score_size, head_size = info->width.head;
    size_t key_rows = layer->by_head ? plan->batch.projected_keys : 0;
    size_t pair_rows = layer->by_head ? plan->batch.value_rows : 0;
    float *keys = run->keys + at->first_projected * key_ld;
    bool panels = layer->key_panels && !layer->finishes;
    bool pairs = engine->kernels->pack_pairs_bf16 != NULL && !layer->finishes_values;
    float clip = (float)info->projection.clip;
    float first_clip = info->projection.clip_last ? 0.0F : clip;
    struct projection items[] = {
        [ATTN_QUERY] = {.wanted = run->query_heads,
                        .place = {run->queries, score_size, 0, layer->score_width},
                        .clip = first_clip},
        [ATTN_GATE] = {.wanted = run->summed,
                       .place = {run->gates, head_size, 0, layer->hidden}},
        [ATTN_KEY] = {.wanted = run->key_heads,
                      .place = {keys, score_size, key_rows, key_ld},
                      .form = panels ? PLACE_KEY_PANELS : PLACE_ROWS,
                      .clip = first_clip},
        [ATTN_VALUE] = {.wanted = run->summed_keys,
                        .place = {run->value_rows + at->first_projected * value_ld,
                                  head_size, key_rows, value_ld},
                        .clip = clip},
    };

    if (pairs) {
        items[ATTN_VALUE].place.y = run->values + at->first_value * value_ld;
        items[ATTN_VALUE].place.head_rows = pair_rows;
        items[ATTN_VALUE].form = PLACE_VALUE_PAIRS;
    }
    items[which].linear = &engine->linears[which];
    return items[which];
}

/* Projects the first rows of queries, and some rows of keys and values, which are those
 * of `sequence` and the next ones. Inputs that are the same tensor go together. */
static void project_rows(const struct run *run, size_t num_queries, struct range keys,
                         size_t sequence) {
    const struct plan *plan = run->plan;
    const attn_request *request = run->request;
    const struct sequence_position *at = &run->sequences[sequence];
    const attn_model_info *info = &run->model->info;
    size_t num_keys = keys.end - keys.first;
    struct projections queries, of_keys, values;

    begin_inputs(run, ATTN_QUERY, request->queries, num_queries, sequence, &queries);
    begin_inputs(run, ATTN_KEY, request->keys + keys.first * info->width.key, num_keys,
                 sequence, &of_keys);
    begin_inputs(run, ATTN_VALUE, request->values + keys.first * info->width.value,
                 num_keys, sequence, &values);
    bool same_keys = request->keys == request->queries && num_keys == num_queries &&
                     of_keys.x_ld == queries.x_ld && of_keys.norms == queries.norms &&
                     of_keys.latent == queries.latent;
    bool same_values = request->values == request->keys && values.x_ld == of_keys.x_ld;
    struct projections *with_keys = same_keys ? &queries : &of_keys;
    const struct {
        struct projections *of;
        attn_linear which;
        bool wanted;
    } all[] = {
        {&queries, ATTN_QUERY, num_queries > 0 && plan->batch.any_scores},
        {&queries, ATTN_GATE, num_queries > 0 && plan->layer.gates},
        {with_keys, ATTN_KEY, num_keys > 0 && plan->batch.any_scores},
        {same_values ? with_keys : &values, ATTN_VALUE, num_keys > 0 && plan->layer.sums},
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const struct projection item = describe_projection(run, all[i].which, at);
        if (all[i].wanted)
            add_projection(all[i].of, &item);
    }
    project_inputs(&queries);
    project_inputs(&of_keys);
    project_inputs(&values);
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

/* Projects x [rows, in], in all columns, to y. */
static void write_projection(const struct run *run, attn_linear which, const float *x,
                             size_t rows, float *y) {
    struct projection item = describe_projection(run, which, run->sequences);
    const struct range all = {0, item.linear->out};
    struct projections p;

    item.wanted = (struct ranges){&all, 1};
    item.place = (struct store_place){y, 1, 0, item.linear->out};
    item.form = PLACE_ROWS;
    begin_inputs(run, which, x, rows, 0, &p);
    add_projection(&p, &item);
    project_inputs(&p);
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
    const struct range all = {0, linear->out};
    struct projections p = {.run = run,
                            .engine = &run->model->engine,
                            .x = x,
                            .rows = rows,
                            .x_ld = linear->in,
                            .depth = words};

    add_projection(&p, &(struct projection){.linear = linear,
                                            .wanted = {&all, 1},
                                            .place = {y, 1, 0, y_ld}});
    run_projections(&p);
}
