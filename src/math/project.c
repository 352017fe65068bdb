/* SPDX-License-Identifier: Apache-2.0 */
/* project.c: the projections, divided into strips of rows times panels of weights. With
 * kernels for bfloat16 the rows are converted first. */
#include "math/run.h"

#define STRIP_ROWS      192 /* rows that stay in the second-level cache */
#define TASK_PANELS_MAX 8   /* panels of weights in one task */

/* Rows to convert to bfloat16. */
struct conversion {
    const struct kernels *kernels;
    const float *from;
    float *to;
    size_t rows, width, to_ld;
};

static size_t num_strips(size_t rows) {
    return (rows + STRIP_ROWS - 1) / STRIP_ROWS;
}

/* Returns how many rows the strip that begins at row `first` has. */
static size_t strip_rows(size_t rows, size_t first) {
    return rows - first < STRIP_ROWS ? rows - first : STRIP_ROWS;
}

static void convert_strip(void *data, size_t index, size_t thread) {
    const struct conversion *c = data;
    size_t first = index * STRIP_ROWS;

    (void)thread;
    c->kernels->convert_bf16(c->from + first * c->width, c->width,
                             strip_rows(c->rows, first), c->width,
                             c->to + first * c->to_ld, c->to_ld);
}

/* Up to three projections of the same rows. They are computed strip by strip, so that the
 * rows are read from memory once. */
struct projections {
    const struct engine *engine;
    const float *x;   /* [rows, in] */
    float *converted; /* where x goes in bfloat16; may be x itself */
    size_t x_ld;
    size_t rows;
    size_t count;
    const struct linear *linears[3];
    float *y[3];
    size_t panels[3]; /* of weights, in each projection */
    size_t all_panels;
    size_t task_panels; /* panels in one task, which is of one projection */
    size_t strip_tasks; /* tasks of one strip */
};

static void add_projection(struct projections *p, const struct linear *linear, float *y) {
    p->linears[p->count] = linear;
    p->y[p->count] = y;
    p->panels[p->count] = engine_num_panels(p->engine, linear);
    p->all_panels += p->panels[p->count];
    p->count++;
}

/* Returns how many tasks projection i has in one strip. */
static size_t projection_tasks(const struct projections *p, size_t i) {
    return (p->panels[i] + p->task_panels - 1) / p->task_panels;
}

static void project_task(void *data, size_t index, size_t thread) {
    const struct projections *p = data;
    size_t first_row = index / p->strip_tasks * STRIP_ROWS;
    size_t task = index % p->strip_tasks, i = 0;

    (void)thread;
    for (; task >= projection_tasks(p, i); i++)
        task -= projection_tasks(p, i);
    const struct linear *linear = p->linears[i];
    size_t first = task * p->task_panels, end = first + p->task_panels;
    engine_project(p->engine, linear, first, end < p->panels[i] ? end : p->panels[i],
                   p->x + first_row * p->x_ld, p->x_ld, strip_rows(p->rows, first_row),
                   p->y[i] + first_row * linear->out);
}

/* Converts x to bfloat16. */
static void convert_input(const struct run *run, struct projections *p) {
    struct conversion c = {.kernels = p->engine->kernels,
                           .from = p->x,
                           .to = p->converted,
                           .rows = p->rows,
                           .width = p->linears[0]->in,
                           .to_ld = p->converted == p->x ? p->x_ld : (p->x_ld + 1) / 2};

    run_share(run, RUN_CONVERT_FLOPS * (double)p->rows * (double)c.width,
              num_strips(p->rows), convert_strip, &c);
    p->x = c.to;
    p->x_ld = c.to_ld;
}

static void run_projections(const struct run *run, struct projections *p) {
    size_t strips = num_strips(p->rows), num_threads = run->plan->num_threads;
    double rows = (double)(p->rows < PLAN_ROWS_MIN ? PLAN_ROWS_MIN : p->rows), flops = 0;

    for (size_t i = 0; i < p->count; i++)
        flops += 2 * rows * (double)p->linears[i]->in * (double)p->linears[i]->out;
    /* Large tasks for one thread, but not too long; enough of them for several. */
    p->task_panels = run_task_items(strips * p->all_panels, flops, num_threads);
    if (p->task_panels > TASK_PANELS_MAX)
        p->task_panels = TASK_PANELS_MAX;
    for (size_t i = 0; i < p->count; i++)
        p->strip_tasks += projection_tasks(p, i);
    p->x_ld = p->linears[0]->in;
    if (p->engine->kernels->convert_bf16 != NULL)
        convert_input(run, p);
    run_share(run, flops, strips * p->strip_tasks, project_task, p);
}

/* Returns whether a score can matter: a query with one key gives it all the weight. */
static bool any_choice(const attn_request *request) {
    for (size_t s = 0; s < request->num_sequences; s++) {
        if (request->key_lens[s] > 1)
            return true;
    }
    return false;
}

void run_project_inputs(const struct run *run) {
    const struct engine *engine = &run->model->engine;
    const attn_request *request = run->request;
    const attn_sizes *sizes = &run->plan->sizes;
    struct projections queries = {.engine = engine,
                                  .x = request->queries,
                                  .converted = run->converted,
                                  .rows = sizes->num_queries};
    struct projections keys = {.engine = engine,
                               .x = request->keys,
                               .converted = run->converted,
                               .rows = sizes->num_keys};
    struct projections values = {.engine = engine,
                                 .x = request->values,
                                 .converted = run->converted,
                                 .rows = sizes->num_keys};

    /* Inputs that are the same tensor are projected together. */
    bool same_keys = request->keys == request->queries &&
                     sizes->num_keys == sizes->num_queries &&
                     engine->to_key.in == engine->to_query.in;
    bool same_values =
        request->values == request->keys && engine->to_value.in == engine->to_key.in;
    struct projections *with_keys = same_keys ? &queries : &keys;
    struct projections *with_values = same_values ? with_keys : &values;
    if (any_choice(request)) {
        add_projection(&queries, &engine->to_query, run->queries);
        add_projection(with_keys, &engine->to_key, run->keys);
    }
    add_projection(with_values, &engine->to_value, run->values);

    if (queries.count > 0)
        run_projections(run, &queries);
    if (keys.count > 0)
        run_projections(run, &keys);
    if (values.count > 0)
        run_projections(run, &values);
}

void run_project_outputs(const struct run *run, float *outputs) {
    struct projections p = {.engine = &run->model->engine,
                            .x = run->context,
                            .converted = run->context,
                            .rows = run->plan->sizes.num_queries};

    add_projection(&p, &p.engine->to_output, outputs);
    run_projections(run, &p);
}
