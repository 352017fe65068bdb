/* SPDX-License-Identifier: Apache-2.0 */
/* project.c: the projections, cut into chunks of rows times panels of weights. With
 * kernels for bfloat16 the rows are narrowed before. */
#include "math/run.h"

#define ROW_CHUNK 192 /* rows of a projection that stay in the second-level cache */
#define PIECE_MAX 8   /* panels of weights in one piece of work */
#define FEW_ROWS  8   /* fewer take as long as these: their weights must be read */

/* Rows to be made into elements. */
struct narrowing {
    const struct kernels *kernels;
    const float *from;
    float *to;
    size_t rows, width, to_ld;
};

static void narrow_chunk(void *data, size_t index, size_t thread) {
    const struct narrowing *n = data;
    size_t first = index * ROW_CHUNK;
    size_t rows = n->rows - first < ROW_CHUNK ? n->rows - first : ROW_CHUNK;
    (void)thread;
    n->kernels->narrow(n->from + first * n->width, n->width, rows, n->width,
                       n->to + first * n->to_ld, n->to_ld);
}

/* Up to three projections of the same rows, done chunk of rows by chunk, so that the rows
 * are read from memory once. */
struct projections {
    const struct engine *engine;
    const float *x; /* [rows, in] */
    float *narrow;  /* where x goes as elements, `in` apart at most; may be x itself */
    size_t x_ld;
    size_t rows;
    size_t count;
    const struct linear *linears[3];
    float *y[3];
    size_t panels[3]; /* of weights, of each */
    size_t all_panels;
    size_t piece;      /* panels in one piece of work */
    size_t all_pieces; /* of one chunk of rows; a piece is of one projection */
};

static void add_projection(struct projections *p, const struct linear *linear, float *y) {
    p->linears[p->count] = linear;
    p->y[p->count] = y;
    p->panels[p->count] = engine_num_panels(p->engine, linear);
    p->all_panels += p->panels[p->count];
    p->count++;
}

static size_t num_pieces(const struct projections *p, size_t i) {
    return (p->panels[i] + p->piece - 1) / p->piece;
}

/* One piece of the columns of one chunk of rows. */
static void project_piece(void *data, size_t index, size_t thread) {
    const struct projections *p = data;
    size_t first_row = index / p->all_pieces * ROW_CHUNK;
    size_t rows = p->rows - first_row < ROW_CHUNK ? p->rows - first_row : ROW_CHUNK;
    size_t piece = index % p->all_pieces, i = 0;
    (void)thread;
    for (; piece >= num_pieces(p, i); i++)
        piece -= num_pieces(p, i);
    const struct linear *linear = p->linears[i];
    size_t first = piece * p->piece, end = first + p->piece;
    engine_project(p->engine, linear, first, end < p->panels[i] ? end : p->panels[i],
                   p->x + first_row * p->x_ld, p->x_ld, rows,
                   p->y[i] + first_row * linear->out);
}

/* Puts elements in the place of x. */
static void narrow_rows(const struct run *run, struct projections *p) {
    struct narrowing n = {.kernels = p->engine->kernels,
                          .from = p->x,
                          .to = p->narrow,
                          .rows = p->rows,
                          .width = p->linears[0]->in,
                          .to_ld = p->narrow == p->x ? p->x_ld : (p->x_ld + 1) / 2};
    run_share(run, RUN_NARROW_FLOPS * (double)p->rows * (double)n.width,
              (p->rows + ROW_CHUNK - 1) / ROW_CHUNK, narrow_chunk, &n);
    p->x = n.to;
    p->x_ld = n.to_ld;
}

static void project(const struct run *run, struct projections *p) {
    size_t chunks = (p->rows + ROW_CHUNK - 1) / ROW_CHUNK;
    size_t thread_scratch = run->plan->num_threads;
    size_t piece = thread_scratch > 1
                       ? chunks * p->all_panels / (thread_scratch * RUN_TASKS_PER_THREAD)
                       : PIECE_MAX;
    double rows = (double)(p->rows < FEW_ROWS ? FEW_ROWS : p->rows), flops = 0;
    p->piece = piece < 1 ? 1 : piece > PIECE_MAX ? PIECE_MAX : piece;
    for (size_t i = 0; i < p->count; i++) {
        p->all_pieces += num_pieces(p, i);
        flops += 2 * rows * (double)p->linears[i]->in * (double)p->linears[i]->out;
    }
    p->x_ld = p->linears[0]->in;
    if (p->engine->kernels->narrow != NULL)
        narrow_rows(run, p);
    run_share(run, flops, chunks * p->all_pieces, project_piece, p);
}

/* Whether a score can matter: a query that has one key gives it all its weight. */
static bool any_choice(const attn_request *request) {
    for (size_t s = 0; s < request->num_sequences; s++) {
        if (request->key_lens[s] > 1)
            return true;
    }
    return false;
}

/* Queries, keys and values; those that are the same tensor go together. */
void run_project_inputs(const struct run *run) {
    const struct engine *engine = &run->model->engine;
    const attn_request *request = run->request;
    const attn_sizes *sizes = &run->plan->sizes;
    struct projections queries = {.engine = engine,
                                  .x = request->queries,
                                  .narrow = run->narrow,
                                  .rows = sizes->num_queries};
    struct projections keys = {.engine = engine,
                               .x = request->keys,
                               .narrow = run->narrow,
                               .rows = sizes->num_keys};
    struct projections values = {.engine = engine,
                                 .x = request->values,
                                 .narrow = run->narrow,
                                 .rows = sizes->num_keys};
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
        project(run, &queries);
    if (keys.count > 0)
        project(run, &keys);
    if (values.count > 0)
        project(run, &values);
}

void run_project_outputs(const struct run *run, float *outputs) {
    struct projections p = {.engine = &run->model->engine,
                            .x = run->context,
                            .narrow = run->context,
                            .rows = run->plan->sizes.num_queries};
    add_projection(&p, &p.engine->to_output, outputs);
    project(run, &p);
}
