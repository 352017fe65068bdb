/* SPDX-License-Identifier: Apache-2.0 */
/* estimate.c: moving averages, and what is assumed until there are any. */
#include "models/estimate.h"

#include "math/model.h"

#include <attnd/attention.h>
#include <stdatomic.h>
#include <stdlib.h>

#define NUM_SIZES    48    /* powers of two */
#define NEWEST_SHARE 0.125 /* of a moving average */
/* A value counts as so many times the average at most: a thread may lose its CPU for much
 * longer than it works. */
#define OUTLIER 2.0

/* Assumed until something was measured. */
#define TEXT_NS_PER_BYTE   2.0
#define BINARY_NS_PER_BYTE 0.2
#define REPLY_NS_PER_BYTE  2.0
#define GIVEN_NS_PER_FLOP  0.05 /* without a model: that is slow for one core */
#define TEXT_BYTES         4    /* of a number: few digits and a comma */
#define SHORT_ROWS         128  /* rows of a sequence */

/* Fixed cost of a request, in operations. */
#define OTHER_FLOPS 1e5
/* Writing a smaller reply is not measured. */
#define REPLY_BYTES_MIN 4096

/* Nanoseconds; 0: not known yet. */
typedef _Atomic double average;

/* What was learned about a model: an operation, and times by estimate_body.text and the
 * size of bodies in powers of two. It has nothing but averages. */
struct model_times {
    average flop;
    struct size_times {
        average decode, later;
    } sizes[2][NUM_SIZES];
};

struct estimate {
    const attn_model *const *models; /* [num_models], borrowed */
    size_t num_models;
    average reply[2]; /* a byte of a reply, by estimate_body.text */
    /* [num_models + 2]; the last two stand for a body that may name any, and for one
     * without a model. The operation of the first of them is that without a model. */
    struct model_times times[];
};

static double load_average(const average *a) {
    return atomic_load_explicit(a, memory_order_relaxed);
}

static void update_average(average *a, double value) {
    double old = load_average(a);
    if (old > 0) {
        if (value > OUTLIER * old)
            value = OUTLIER * old;
        value = old + NEWEST_SHARE * (value - old);
    }
    atomic_store_explicit(a, value, memory_order_relaxed);
}

/* Returns num_models when the model is not known. */
static size_t find_model_index(const struct estimate *estimate, const attn_model *model) {
    size_t i = 0;
    while (i < estimate->num_models && estimate->models[i] != model)
        i++;
    return i;
}

static struct size_times *find_times(struct estimate *estimate,
                                     const struct estimate_body *body) {
    size_t model = estimate->num_models, power = 0;
    if (body->num_models == 1)
        model = find_model_index(estimate, body->models[0]);
    else if (body->num_models == 0)
        model++;
    while (power < NUM_SIZES - 1 && body->size >> power > 1)
        power++;
    return &estimate->times[model].sizes[body->text][power];
}

/* Returns the operations of as many rows as fit in the body, in sequences of SHORT_ROWS.
 * Longer ones take more time per row, but a guess that is too high would refuse
 * others. */
static double guess_flops(const attn_model *model, const struct estimate_body *body) {
    const attn_model_info *info = attn_model_get_info(model);
    size_t row_bytes = info->width.query * (body->text ? TEXT_BYTES : sizeof(float));
    size_t rows = body->size / row_bytes + 1;
    attn_sizes sizes = {0};

    size_t length = rows < SHORT_ROWS ? rows : SHORT_ROWS;
    if (info->context_length > 0 && length > info->context_length)
        length = info->context_length;
    const attn_request request = {
        .num_sequences = 1, .query_lens = &length, .key_lens = &length};
    attn_plan(model, &request, &sizes, NULL); /* cannot fail */
    return sizes.flops * ((double)rows / (double)length);
}

/* Returns the shortest time of the layer among the models that the body may name: a
 * request must not be refused for a model that it does not use. */
static double guess_compute(const struct estimate *estimate,
                            const struct estimate_body *body) {
    double shortest = body->num_models > 0 ? 1e18 : 0;
    for (size_t i = 0; i < body->num_models; i++) {
        size_t model = find_model_index(estimate, body->models[i]);
        double time = guess_flops(body->models[i], body) *
                      load_average(&estimate->times[model].flop);
        shortest = time < shortest ? time : shortest;
    }
    return shortest;
}

void estimate_body(struct estimate *estimate, const struct estimate_body *body,
                   int64_t *ret_decode, int64_t *ret_later) {
    const struct size_times *times = find_times(estimate, body);
    double decode = load_average(&times->decode), later = load_average(&times->later);

    if (decode == 0) {
        decode =
            (double)body->size * (body->text ? TEXT_NS_PER_BYTE : BINARY_NS_PER_BYTE);
        later = guess_compute(estimate, body);
    }
    *ret_decode = (int64_t)decode;
    *ret_later = (int64_t)later;
}

int64_t estimate_reply(const struct estimate *estimate, bool text, size_t bytes) {
    double per_byte = load_average(&estimate->reply[text]);
    return (int64_t)((double)bytes * (per_byte > 0 ? per_byte : REPLY_NS_PER_BYTE));
}

int64_t estimate_compute(const struct estimate *estimate, const attn_model *model,
                         double flops) {
    size_t i = find_model_index(estimate, model);
    return (int64_t)((flops + OTHER_FLOPS) * load_average(&estimate->times[i].flop));
}

void estimate_learn(struct estimate *estimate, const struct estimate_body *body,
                    const struct estimate_measured *measured) {
    struct size_times *times = find_times(estimate, body);
    size_t i = find_model_index(estimate, measured->model);

    update_average(&times->later, (double)(measured->compute + measured->encode));
    update_average(&times->decode, (double)measured->decode + 1); /* not 0 */
    if (measured->flops > 0)
        update_average(&estimate->times[i].flop,
                       (double)measured->compute / (measured->flops + OTHER_FLOPS));
    if (measured->reply >= REPLY_BYTES_MIN)
        update_average(&estimate->reply[body->text],
                       (double)measured->write / (double)measured->reply);
}

static void copy_averages(average *to, const average *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        atomic_init(&to[i], load_average(&from[i]));
}

/* Takes over what `earlier` has learned about its models, and about bodies that may name
 * any or none. */
static void learn_from(struct estimate *estimate, const struct estimate *earlier) {
    const size_t count = estimate->num_models;

    copy_averages(estimate->reply, earlier->reply, 2);
    for (size_t i = 0; i < count + 2; i++) {
        size_t known = i < count ? find_model_index(earlier, estimate->models[i])
                                 : earlier->num_models + i - count;
        if (i >= count || known < earlier->num_models)
            copy_averages((average *)&estimate->times[i],
                          (const average *)&earlier->times[known],
                          sizeof *estimate->times / sizeof(average));
    }
}

attn_status estimate_create(const attn_model *const *models, size_t num_models,
                            const struct estimate *earlier,
                            struct estimate **ret_estimate) {
    struct estimate *estimate =
        calloc(1, sizeof *estimate + (num_models + 2) * sizeof estimate->times[0]);
    if (estimate == NULL)
        return ATTN_E_NOMEM;

    estimate->models = models;
    estimate->num_models = num_models;
    atomic_init(&estimate->times[num_models].flop, GIVEN_NS_PER_FLOP);
    if (earlier != NULL)
        learn_from(estimate, earlier);
    for (size_t i = 0; i < num_models; i++) {
        double flops, ns; /* of a small run */
        if (load_average(&estimate->times[i].flop) > 0)
            continue;
        if (model_try(models[i], &flops, &ns) != ATTN_OK) {
            free(estimate);
            return ATTN_E_NOMEM;
        }
        atomic_init(&estimate->times[i].flop, ns / (flops + OTHER_FLOPS));
    }

    *ret_estimate = estimate;
    return ATTN_OK;
}

void estimate_destroy(struct estimate *estimate) {
    free(estimate);
}
