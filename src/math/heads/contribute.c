/* SPDX-License-Identifier: Apache-2.0 */
/* contribute.c: computes c_h = W_o[:, h] z_h for a strip of rows and a panel of output
 * columns at a time, and multiplies all pairs of heads while they are in the cache. The
 * outputs themselves are one more row of that product. */
#include "math/heads/parts.h"

#include "base/pace.h"
#include "math/run/run.h"

#include <math.h>
#include <string.h>

/* Squares of contributions are summed in float32. Outside of these limits they leave its
 * range, or lose digits, and the strip is multiplied once more by a power of 2. */
#define SQUARES_MIN  0x1p-90
#define SMALL_FACTOR 0x1p90F
#define LARGE_FACTOR 0x1p-75F

/* One strip of rows on one thread; the arrays are in the thread's scratch. */
struct strip {
    const struct run *run;
    size_t first_row, rows;
    float *inputs; /* [H, PLAN_HEAD_ROWS, words of a head] z_h in words, 0 around them */
    float *parts;  /* [H + 1, PLAN_HEAD_ROWS, columns] c_h, and their sum with the bias */
    double *products; /* [H + 1, H + 1], those on and below the diagonal */
    float factor;     /* on the parts; a power of 2 */
};

/* Returns the words of a row that head `head` has a part in. */
static struct range head_words(const struct run *run, size_t head) {
    size_t k_step = run->model->engine.kernels->k_step;
    size_t head_size = run->model->info.width.head;

    return (struct range){head * head_size / k_step,
                          ((head + 1) * head_size + k_step - 1) / k_step};
}

/* Copies the heads' outputs, each into rows of its own. Where heads share a word, each
 * gets it with 0 for the other's factor. */
static void copy_inputs(const struct strip *s) {
    const struct run *run = s->run;
    const struct kernels *kernels = run->model->engine.kernels;
    size_t hidden = run->plan->layer.hidden, head_size = run->model->info.width.head;

    for (size_t h = 0; h < run->model->info.num_heads; h++) {
        struct range words = head_words(run, h);
        size_t ld = (words.end - words.first) * kernels->k_step;
        size_t offset = h * head_size - words.first * kernels->k_step;
        float *to = s->inputs + h * PLAN_HEAD_ROWS * run->plan->scratch.head_ld;

        for (size_t r = 0; r < s->rows; r++) {
            const float *from =
                run->context + (s->first_row + r) * hidden + h * head_size;
            memset(to + r * ld, 0, ld * sizeof *to);
            memcpy(to + r * ld + offset, from, head_size * sizeof *to);
        }
        if (kernels->convert_bf16 != NULL)
            kernels->convert_bf16(to, ld, s->rows, ld, to, ld);
    }
}

/* Computes columns first..first+width of what one head adds to the outputs. */
static void multiply_head(const struct strip *s, size_t head, size_t first, size_t width,
                          float *part) {
    const struct engine *engine = &s->run->model->engine;
    const struct range columns = {first, first + width}, words = head_words(s->run, head);
    const float *inputs =
        s->inputs + head * PLAN_HEAD_ROWS * s->run->plan->scratch.head_ld;
    const struct linear linear = run_output_without_bias(s->run);

    engine_project(engine, &linear, columns, &words, 1, inputs - words.first,
                   (words.end - words.first) * engine->kernels->k_step, false, s->rows,
                   part - first, engine->kernels->columns);
}

/* Sums up the contributions and the bias: columns first..first+width of the outputs. */
static void sum_parts(const struct strip *s, size_t first, size_t width) {
    const struct linear *to_output = &s->run->model->engine.linears[ATTN_OUTPUT];
    size_t columns = s->run->model->engine.kernels->columns;
    size_t num_heads = s->run->model->info.num_heads, size = s->rows * columns;
    const float *bias =
        s->run->model->engine.native ? to_output->panels.bias : to_output->bias;
    float *sum = s->parts + num_heads * size;

    memset(sum, 0, size * sizeof *sum);
    for (size_t r = 0; bias != NULL && r < s->rows; r++)
        memcpy(sum + r * columns, bias + first, width * sizeof *sum);
    for (size_t h = 0; h < num_heads; h++) {
        const float *part = s->parts + h * size;
        for (size_t i = 0; i < size; i++)
            sum[i] += part[i];
    }
    for (size_t i = 0; s->factor != 1.0F && i < (num_heads + 1) * size; i++)
        s->parts[i] *= s->factor;
}

/* Multiplies what the heads add to the outputs. */
static void multiply_parts(const struct strip *s) {
    const struct engine *engine = &s->run->model->engine;
    size_t columns = engine->kernels->columns, num_heads = s->run->model->info.num_heads;
    size_t size = s->rows * columns, out = engine->linears[ATTN_OUTPUT].out;

    memset(s->products, 0, (num_heads + 1) * (num_heads + 1) * sizeof *s->products);
    for (size_t first = 0; first < out; first += columns) {
        size_t width = out - first < columns ? out - first : columns;
        if (width < columns)
            memset(s->parts, 0, num_heads * size * sizeof *s->parts);
        for (size_t h = 0; h < num_heads; h++)
            multiply_head(s, h, first, width, s->parts + h * size);
        sum_parts(s, first, width);
        engine->kernels->add_products(s->parts, num_heads + 1, size, s->products);
    }
}

/* Returns the largest product of a part with itself; NaN or infinite if any is. */
static double largest_square(const struct strip *s) {
    size_t count = s->run->model->info.num_heads + 1;
    double largest = 0, sum = 0;

    for (size_t h = 0; h < count; h++) {
        double square = s->products[h * count + h];
        largest = square > largest ? square : largest;
        sum += square;
    }
    return isfinite(sum) ? largest : sum;
}

/* Multiplies what the heads add to the outputs, in the range of float32. */
static void multiply_in_range(struct strip *s) {
    size_t count = s->run->model->info.num_heads + 1;

    copy_inputs(s);
    multiply_parts(s);
    double largest = largest_square(s);
    if (largest >= SQUARES_MIN && isfinite(largest))
        return;

    s->factor = largest < SQUARES_MIN ? SMALL_FACTOR : LARGE_FACTOR;
    multiply_parts(s);
    for (size_t i = 0; i < count * count; i++)
        s->products[i] /= (double)s->factor * (double)s->factor;
}

/* Without an output projection, each head's outputs are columns of their own. */
static void square_context(const struct strip *s) {
    size_t num_heads = s->run->model->info.num_heads;
    size_t head_size = s->run->model->info.width.head;
    const float *row = s->run->context + s->first_row * s->run->plan->layer.hidden;
    double *norm = &s->products[num_heads * (num_heads + 1) + num_heads];

    memset(s->products, 0, (num_heads + 1) * (num_heads + 1) * sizeof *s->products);
    for (size_t r = 0; r < s->rows; r++) {
        for (size_t h = 0; h < num_heads; h++, row += head_size) {
            double sum = 0;
            for (size_t d = 0; d < head_size; d++)
                sum += (double)row[d] * (double)row[d];
            s->products[h * (num_heads + 1) + h] += sum;
            *norm += sum;
        }
    }
}

static void contribute_task(void *data, size_t index, size_t thread) {
    const struct run *run = *(const struct run *const *)data;
    const struct plan *plan = run->plan;
    size_t num_queries = plan->batch.num_queries, first = index * PLAN_HEAD_ROWS;
    size_t count = run->model->info.num_heads + 1;
    struct strip s = {
        .run = run,
        .first_row = first,
        .rows =
            num_queries - first < PLAN_HEAD_ROWS ? num_queries - first : PLAN_HEAD_ROWS,
        .inputs = run_thread(run, thread, run->thread.inputs),
        .parts = run_thread(run, thread, run->thread.parts),
        .products = run->strip_products + index * count * count,
        .factor = 1.0F,
    };

    if (run->model->info.linears[ATTN_OUTPUT].weight)
        multiply_in_range(&s);
    else
        square_context(&s);
}

void heads_contribute(const struct run *run, double *gram, double *squared_norm) {
    const struct plan *plan = run->plan;
    size_t num_heads = run->model->info.num_heads, count = num_heads + 1;

    share_tasks(run->request->parallel, plan->flops.heads, plan->scratch.num_strips,
                contribute_task, &run);
    for (size_t i = 0; i < plan->scratch.num_strips; i++) {
        const double *products = run->strip_products + i * count * count;
        pace_add(count * count / 2);
        for (size_t h = 0; h < num_heads; h++) {
            for (size_t g = 0; g <= h; g++)
                gram[h * num_heads + g] += products[h * count + g];
        }
        *squared_norm += products[num_heads * count + num_heads];
    }
    for (size_t h = 0; h < num_heads; h++) {
        for (size_t g = 0; g < h; g++)
            gram[g * num_heads + h] = gram[h * num_heads + g];
    }
}
