/* SPDX-License-Identifier: Apache-2.0 */
/* attn.c: the layer, cut into pieces that the threads of a crew take.
 *
 * Three steps, each of which waits for the one before: queries, keys and values are
 * projected; each panel of queries of each head attends; the outputs are projected. With
 * kernels for bfloat16 the factors of each step are narrowed before it. All rows of the
 * batch stand after each other without padding, and heads are addressed by leading
 * dimension. How a step is cut never changes a bit of what the native engine computes. */
#include "math/mask.h"
#include "math/model.h"
#include "math/parts.h"
#include "math/plan.h"

#include <string.h>

#define ROW_CHUNK    192 /* rows of a projection that stay in the second-level cache */
#define PIECE_MOST   8   /* panels of weights in one piece of work */
#define SHARE_FLOPS  2e6 /* less is done faster alone */
#define FEW_ROWS     8   /* fewer take as long as these: their weights must be read */
#define NARROW_FLOPS 4   /* what making one number narrow counts for */
#define TASKS_A_SLOT 8   /* pieces per thread, so that none waits long for the last */

/* What every step of one call needs. */
struct run {
    const attn_model *model;
    const attn_request *request;
    const struct plan *plan;
    float *narrow;         /* elements of one input; unused without bfloat16 */
    float *queries, *keys; /* [rows, score_width] */
    float *values;         /* [sum of Tk, H*D] */
    float *context;        /* [sum of Tq, H*D]: the heads' outputs */
    float *weights;        /* attn_result.weights; NULL when not wanted */
    size_t *first_panels;  /* [B + 1] */
    float *slots;
};

/* Does the tasks alone, in order, or with the crew when that is worth its while. */
static void share(const struct run *run, double flops, size_t count,
                  void (*task)(void *data, size_t index, size_t slot), void *data) {
    const attn_crew *crew = run->request->crew;
    if (crew != NULL && crew->num_slots > 1 && count > 1 && flops >= SHARE_FLOPS) {
        crew->run(crew->context, count, task, data);
        return;
    }
    for (size_t i = 0; i < count; i++)
        task(data, i, 0);
}

/* --- projections --- */

/* Rows to be made into elements. */
struct narrowing {
    const struct kernels *kernels;
    const float *from;
    float *to;
    size_t rows, width, to_ld;
};

static void narrow_chunk(void *data, size_t index, size_t slot) {
    const struct narrowing *n = data;
    size_t first = index * ROW_CHUNK;
    size_t rows = n->rows - first < ROW_CHUNK ? n->rows - first : ROW_CHUNK;
    (void)slot;
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
static void project_piece(void *data, size_t index, size_t slot) {
    const struct projections *p = data;
    size_t first_row = index / p->all_pieces * ROW_CHUNK;
    size_t rows = p->rows - first_row < ROW_CHUNK ? p->rows - first_row : ROW_CHUNK;
    size_t piece = index % p->all_pieces, i = 0;
    (void)slot;
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
    share(run, NARROW_FLOPS * (double)p->rows * (double)n.width,
          (p->rows + ROW_CHUNK - 1) / ROW_CHUNK, narrow_chunk, &n);
    p->x = n.to;
    p->x_ld = n.to_ld;
}

static void project(const struct run *run, struct projections *p) {
    size_t chunks = (p->rows + ROW_CHUNK - 1) / ROW_CHUNK;
    size_t slots = run->plan->num_slots;
    size_t piece =
        slots > 1 ? chunks * p->all_panels / (slots * TASKS_A_SLOT) : PIECE_MOST;
    double rows = (double)(p->rows < FEW_ROWS ? FEW_ROWS : p->rows), flops = 0;
    p->piece = piece < 1 ? 1 : piece > PIECE_MOST ? PIECE_MOST : piece;
    for (size_t i = 0; i < p->count; i++) {
        p->all_pieces += num_pieces(p, i);
        flops += 2 * rows * (double)p->linears[i]->in * (double)p->linears[i]->out;
    }
    p->x_ld = p->linears[0]->in;
    if (p->engine->kernels->narrow != NULL)
        narrow_rows(run, p);
    share(run, flops, chunks * p->all_pieces, project_piece, p);
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
static void project_inputs(const struct run *run) {
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

/* --- attention --- */

/* Where a panel of queries stands. */
struct place {
    size_t sequence;
    size_t first_query, first_key; /* of the sequence, in the batch */
    size_t panel;                  /* of the sequence */
    size_t first_weight;           /* of the sequence, in the result's weights */
};

static size_t weights_of_sequence(const struct run *run, size_t sequence) {
    const attn_request *request = run->request;
    return request->query_lens[sequence] * request->key_lens[sequence] *
           (request->need_weights == ATTN_WEIGHTS_ALL ? run->model->info.num_heads : 1);
}

static void next_sequence(const struct run *run, struct place *place) {
    place->first_query += run->request->query_lens[place->sequence];
    place->first_key += run->request->key_lens[place->sequence];
    place->first_weight += weights_of_sequence(run, place->sequence);
    place->sequence++;
    place->panel = 0;
}

/* Sets what one panel attends to; returns how many queries it has. */
static size_t set_num_keys(const struct run *run, const struct place *place,
                           size_t *num_keys, bool *uniform) {
    const attn_request *request = run->request;
    size_t columns = run->model->engine.kernels->columns, first = place->panel * columns;
    size_t left = request->query_lens[place->sequence] - first;
    size_t count = left < columns ? left : columns;
    for (size_t c = 0; c < count; c++) {
        num_keys[c] =
            mask_num_keys(request, place->sequence, place->first_query, first + c);
        uniform[c] = num_keys[c] == 0;
        if (uniform[c])
            num_keys[c] = request->key_lens[place->sequence];
    }
    return count;
}

/* One panel of one head; writes its outputs and, at `weights` [count, Tk], its weights.
 */
static void attend_head(const struct run *run, const struct place *place, size_t head,
                        const size_t *num_keys, const bool *uniform, size_t count,
                        float *weights, size_t slot) {
    const attn_model *model = run->model;
    const struct engine *engine = &model->engine;
    const struct plan *plan = run->plan;
    size_t head_size = model->info.head_size;
    size_t row = place->first_query + place->panel * engine->kernels->columns;
    float factor = run->request->head_mask != NULL ? run->request->head_mask[head] : 1.0F;
    float *outputs = run->context + row * plan->hidden + head * head_size;
    const struct panel_of_queries panel = {
        .queries = run->queries + row * plan->score_width + head * engine->score_size,
        .queries_ld = plan->score_width,
        .num_queries = count,
        .keys =
            run->keys + place->first_key * plan->score_width + head * engine->score_size,
        .keys_ld = plan->score_width,
        .values = run->values + place->first_key * plan->hidden + head * head_size,
        .values_ld = plan->hidden,
        .key_len = run->request->key_lens[place->sequence],
        .num_keys = num_keys,
        .uniform = uniform,
        .additive_score = engine->additive_score,
        .score_size = engine->score_size,
        .head_size = head_size,
        .factor = factor,
        .outputs = outputs,
        .outputs_ld = plan->hidden,
        .weights = weights,
        .scratch = run->slots + slot * plan->slot_floats,
    };
    if (factor != 0.0F || weights != NULL)
        engine->kernels->attend(&panel);
    for (size_t c = 0; factor == 0.0F && c < count; c++) /* pruned: values do not count */
        memset(outputs + c * plan->hidden, 0, head_size * sizeof *outputs);
}

/* All heads of one panel whose mean weights are wanted: added up in the order of the
 * heads. The result's own rows hold the sum; each head's weights go to the rows of the
 * slot. */
static void attend_mean(const struct run *run, const struct place *place,
                        size_t *num_keys, const bool *uniform, size_t count,
                        size_t slot) {
    size_t num_heads = run->model->info.num_heads;
    size_t key_len = run->request->key_lens[place->sequence];
    size_t columns = run->model->engine.kernels->columns;
    float *mean = run->weights + place->first_weight + place->panel * columns * key_len;
    float *one = run->slots + (slot + 1) * run->plan->slot_floats - columns * key_len;
    for (size_t h = 0; h < num_heads; h++) {
        attend_head(run, place, h, num_keys, uniform, count, h == 0 ? mean : one, slot);
        for (size_t i = 0; i < count * key_len; i++)
            mean[i] =
                h == 0 ? mean[i] / (float)num_heads : mean[i] + one[i] / (float)num_heads;
    }
}

/* All that one panel has to do in one head, or in all when the mean of their weights is
 * wanted. */
static void attend_panel(const struct run *run, const struct place *place, size_t head,
                         size_t slot) {
    size_t num_keys[KERNEL_COLUMNS_MAX];
    bool uniform[KERNEL_COLUMNS_MAX];
    size_t count = set_num_keys(run, place, num_keys, uniform);
    if (run->request->need_weights == ATTN_WEIGHTS_MEAN) {
        attend_mean(run, place, num_keys, uniform, count, slot);
        return;
    }
    float *weights = run->weights;
    if (weights != NULL) {
        size_t key_len = run->request->key_lens[place->sequence];
        size_t row = head * run->request->query_lens[place->sequence] +
                     place->panel * run->model->engine.kernels->columns;
        weights += place->first_weight + row * key_len;
    }
    attend_head(run, place, head, num_keys, uniform, count, weights, slot);
}

/* The steps of the attention: `per_head` is how many of num_items go to each sequence's
 * head. */
struct attention {
    const struct run *run;
    size_t num_heads; /* 1 when a panel does all heads itself */
    size_t num_items; /* panels times num_heads */
    size_t chunk;     /* items in one task */
};

/* Finds the sequence of item `index`; items go by sequence, head, panel. */
static struct place find_place(const struct attention *a, size_t index,
                               size_t *ret_head) {
    const struct run *run = a->run;
    struct place place = {0};
    const size_t *first = run->first_panels;
    size_t panel = index / a->num_heads, low = 0, high = run->request->num_sequences;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (first[middle] <= panel)
            low = middle;
        else
            high = middle;
    }
    while (place.sequence < low)
        next_sequence(run, &place);
    size_t panels = first[low + 1] - first[low], rest = index - first[low] * a->num_heads;
    *ret_head = rest / panels;
    place.panel = rest % panels;
    return place;
}

static void attend_chunk(void *data, size_t index, size_t slot) {
    const struct attention *a = data;
    const struct run *run = a->run;
    size_t item = index * a->chunk, end = item + a->chunk, head;
    struct place place = find_place(a, item, &head);
    for (; item < end && item < a->num_items; item++) {
        const size_t *first = run->first_panels + place.sequence;
        attend_panel(run, &place, head, slot);
        place.panel++;
        if (place.panel == first[1] - first[0]) {
            place.panel = 0;
            head++;
        }
        if (head == a->num_heads) {
            head = 0;
            next_sequence(run, &place);
        }
    }
}

/* Makes keys and values of sequences and heads index * chunk.. narrow, where they stand.
 */
static void narrow_heads(void *data, size_t index, size_t slot) {
    const struct attention *a = data;
    const struct run *run = a->run;
    const attn_model_info *info = &run->model->info;
    const struct engine *engine = &run->model->engine;
    const struct plan *plan = run->plan;
    size_t item = index * a->chunk, end = item + a->chunk;
    struct place place = {0};
    (void)slot;
    for (; item < end && item < a->num_items; item++) {
        size_t head = item % info->num_heads;
        while (place.sequence < item / info->num_heads)
            next_sequence(run, &place);
        float *keys = run->keys + place.first_key * plan->score_width;
        float *values = run->values + place.first_key * plan->hidden;
        size_t rows = run->request->key_lens[place.sequence];
        keys += head * engine->score_size;
        values += head * info->head_size;
        if (engine->additive_score == NULL)
            engine->kernels->narrow(keys, plan->score_width, rows, engine->score_size,
                                    keys, plan->score_width);
        engine->kernels->narrow_pairs(values, plan->hidden, rows, info->head_size, values,
                                      2 * plan->hidden);
    }
}

static void narrow_keys_and_values(const struct run *run) {
    const attn_model_info *info = &run->model->info;
    struct attention a = {.run = run, .num_heads = info->num_heads};
    a.num_items = run->request->num_sequences * info->num_heads;
    a.chunk = a.num_items / (run->plan->num_slots * TASKS_A_SLOT) + 1;
    share(run,
          NARROW_FLOPS * 2.0 * (double)run->plan->sizes.num_keys *
              (double)run->plan->hidden,
          (a.num_items + a.chunk - 1) / a.chunk, narrow_heads, &a);
}

static void attend(const struct run *run) {
    const attn_model_info *info = &run->model->info;
    const attn_request *request = run->request;
    const struct plan *plan = run->plan;
    size_t columns = run->model->engine.kernels->columns;
    bool mean = request->need_weights == ATTN_WEIGHTS_MEAN;
    struct attention a = {.run = run, .num_heads = mean ? 1 : info->num_heads};
    double pairs = 0;
    run->first_panels[0] = 0;
    for (size_t s = 0; s < request->num_sequences; s++) {
        run->first_panels[s + 1] =
            run->first_panels[s] + (request->query_lens[s] - 1) / columns + 1;
        pairs += (double)request->query_lens[s] * (double)request->key_lens[s];
    }
    if (run->model->engine.kernels->narrow != NULL)
        narrow_keys_and_values(run);
    a.num_items = plan->num_panels * a.num_heads;
    a.chunk = a.num_items / (plan->num_slots * TASKS_A_SLOT) + 1;
    share(run, 4.0 * pairs * (double)plan->hidden, (a.num_items + a.chunk - 1) / a.chunk,
          attend_chunk, &a);
}

attnd_status attn_run_parts(const attn_model *model, const attn_request *request,
                            void *scratch, const attn_result *result, unsigned parts) {
    const struct engine *engine = &model->engine;
    struct plan plan;
    attnd_status status = plan_make(model, request, &plan, NULL);
    if (status != ATTND_OK)
        return status;
    float *memory = scratch;
    bool wanted = request->need_weights != ATTN_WEIGHTS_NONE;
    struct run run = {
        .model = model,
        .request = request,
        .plan = &plan,
        .narrow = memory + plan.narrow,
        .queries = memory + plan.queries,
        .keys = memory + plan.keys,
        .values = memory + plan.values,
        .context =
            model->info.output_projection ? memory + plan.context : result->outputs,
        .weights = wanted ? result->weights : NULL,
        .first_panels = (size_t *)(void *)(memory + plan.first_panels),
        .slots = memory + plan.slots,
    };
    if ((parts & ATTN_PART_PROJECT_IN) != 0)
        project_inputs(&run);
    if ((parts & ATTN_PART_ATTEND) != 0)
        attend(&run);
    if ((parts & ATTN_PART_PROJECT_OUT) != 0 && model->info.output_projection) {
        struct projections outputs = {.engine = engine,
                                      .x = run.context,
                                      .narrow = run.context,
                                      .rows = plan.sizes.num_queries};
        add_projection(&outputs, &engine->to_output, result->outputs);
        project(&run, &outputs);
    }
    return ATTND_OK;
}

attnd_status attn_run(const attn_model *model, const attn_request *request, void *scratch,
                      const attn_result *result) {
    return attn_run_parts(model, request, scratch, result, ATTN_PARTS_ALL);
}
