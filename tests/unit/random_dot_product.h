/* SPDX-License-Identifier: Apache-2.0 */
/* random_dot_product.h: random requests without a layer, of every option. Include it
 * after cmocka.h. */
#ifndef ATTND_TESTS_RANDOM_DOT_PRODUCT_H
#define ATTND_TESTS_RANDOM_DOT_PRODUCT_H

#include "math/dot_product.h"
#include "random_model.h"

#include <math.h>
#include <stdlib.h>

enum { OF_REQUESTS = RANDOM_POSITIONS | RANDOM_WINDOW | RANDOM_NEED };

/* A request, and what it is computed with. */
struct example {
    attn_dot_product options;
    attn_model model;
    struct random_request r;
    float sinks[16], slopes[16];
    float *bias;
};

static size_t random_head_size(uint64_t *seed) {
    return random_between(seed, 0, 1) == 0 ? random_between(seed, 1, 70)
                                           : 32 * random_between(seed, 1, 4);
}

static void make_options(uint64_t *seed, const char *set, size_t keys,
                         struct example *e) {
    size_t kv_heads = random_between(seed, 1, 3), group = random_between(seed, 1, 4);
    size_t size = random_head_size(seed);

    random_fill(seed, e->sinks, 16);
    random_fill(seed, e->slopes, 16);
    for (size_t h = 0; keys > 100 && h < 16; h++)
        e->slopes[h] = ldexpf(e->slopes[h], -6);
    e->options = (attn_dot_product){
        .num_heads = kv_heads * group,
        .num_kv_heads = group > 1 ? kv_heads : random_between(seed, 0, 1) * kv_heads,
        .head_size = size,
        .value_size = random_between(seed, 0, 1) == 0 ? 0 : random_head_size(seed),
        .scale = random_between(seed, 0, 1) == 0 ? 1 / sqrt((double)size) : -0.25,
        .softcap = random_between(seed, 0, 1) == 0 ? 0 : 1.5,
        .sinks = random_between(seed, 0, 1) == 0 ? NULL : e->sinks,
        .slopes = random_between(seed, 0, 1) == 0 ? NULL : e->slopes,
        .cpu = set,
    };
    assert_int_equal(dot_product_init(&e->options, &e->model, NULL), ATTN_OK);
}

/* Adds a bias half of the time: of its own for each sequence, head and query, or one for
 * all of them; which masks no key, some or most, and all of some queries. */
static void add_bias(uint64_t *seed, struct example *e) {
    static const size_t shares[] = {0, 1, 5, 9};
    attn_request *request = &e->r.request;
    size_t query_len = 0, key_len = 0, masked = random_between(seed, 0, 3);

    if (random_between(seed, 0, 1) == 0)
        return;
    for (size_t s = 0; s < request->num_sequences; s++) {
        query_len = query_len > e->r.query_lens[s] ? query_len : e->r.query_lens[s];
        key_len = key_len > e->r.key_lens[s] ? key_len : e->r.key_lens[s];
    }
    size_t rows = request->num_sequences * e->options.num_heads * query_len;
    e->bias = malloc(rows * key_len * sizeof *e->bias);
    assert_non_null(e->bias);
    random_fill(seed, e->bias, rows * key_len);
    for (size_t r = 0; masked > 0 && r < rows; r++) {
        bool whole = random_between(seed, 0, 5) == 0;
        for (size_t k = 0; k < key_len; k++) {
            if (whole || random_between(seed, 0, 9) < shares[masked])
                e->bias[r * key_len + k] = -INFINITY;
        }
    }
    request->bias = e->bias;
    request->bias_row_ld = random_between(seed, 0, 3) > 0 ? key_len : 0;
    request->bias_head_ld = random_between(seed, 0, 1) * query_len * key_len;
    request->bias_sequence_ld =
        random_between(seed, 0, 1) * e->options.num_heads * query_len * key_len;
}

/* `set` is the name of a set of kernels. */
static struct example *make_example(uint64_t *seed, const char *set, size_t queries,
                                    size_t keys) {
    struct example *e = calloc(1, sizeof *e);

    assert_non_null(e);
    make_options(seed, set, keys, e);
    random_request_init(seed, &e->model, queries, keys, &e->r);
    random_request_add(seed, OF_REQUESTS, &e->model, &e->r);
    add_bias(seed, e);
    return e;
}

static void destroy_example(struct example *e) {
    random_request_deinit(&e->r);
    free(e->bias);
    free(e);
}

#endif
