/* SPDX-License-Identifier: Apache-2.0 */
/* random_panel.h: random panels of queries for the kernels, and what a form of attention
 * makes of them. Include it after cmocka.h. */
#ifndef ATTND_TESTS_RANDOM_PANEL_H
#define ATTND_TESTS_RANDOM_PANEL_H

#include "math/kernels/kernels.h"
#include "random_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDEST      800 /* head or score */
#define LARGEST_GAP 99  /* between rows */

static const struct kernels *kernels;

/* A random panel of queries and everything that it points to, besides its results. The
 * panel itself has no bias, since each form reads another one. */
struct random_panel {
    struct query_panel panel;
    float *queries, *additive_score;
    float *keys, *values; /* float32; rows are as far apart as words are at first */
    size_t values_ld;
    float *key_words, *value_words, *key_panels; /* as struct query_panel says */
    size_t key_panels_ld;
    float *bias; /* [num_queries, key_len], or NULL */
    size_t first_keys[KERNEL_FEW_MAX], end_keys[KERNEL_FEW_MAX];
    bool uniform[KERNEL_FEW_MAX], wanted[KERNEL_FEW_MAX], chunk;
};

/* What either form writes. Outputs are `outputs_ld` floats apart. */
struct results {
    float outputs[KERNEL_FEW_MAX * (WIDEST + LARGEST_GAP)], max[KERNEL_FEW_MAX],
        sum[KERNEL_FEW_MAX];
    float *weights; /* [num_queries, key_len] */
};

static void *allocate(size_t floats) {
    size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    assert_non_null(memory);
    memset(memory, 0xff, bytes); /* NaN */
    return memory;
}

/* Returns random rows, the last of which ends where its memory does. */
static float *random_rows(uint64_t *seed, size_t rows, size_t ld, size_t width) {
    size_t floats = (rows - 1) * ld + width;
    float *memory = malloc(floats * sizeof *memory);
    assert_non_null(memory);
    random_fill(seed, memory, floats);
    return memory;
}

/* Draws few keys, or about as many as a whole number of blocks, or many. */
static size_t random_key_len(uint64_t *seed, size_t most) {
    switch (random_between(seed, 0, 7)) {
    case 0:
        return random_between(seed, 1, 3);
    case 1:
    case 2:
        return KEY_BLOCK * random_between(seed, 1, 3) + random_between(seed, 0, 4) - 2;
    case 3:
        return random_between(seed, 1, most);
    default:
        return random_between(seed, 1, 2 * KEY_BLOCK);
    }
}

/* Draws the keys of each query: as many for all, those up to its own position, or any. */
static void random_masks(uint64_t *seed, struct random_panel *p) {
    size_t kind = random_between(seed, 0, 3), key_len = p->panel.key_len;
    size_t first = random_between(seed, 0, key_len), least = p->chunk ? 0 : 1;

    for (size_t c = 0; c < p->panel.num_queries; c++) {
        size_t keys = key_len;
        if (kind == 1)
            keys = first;
        else if (kind == 2)
            keys = first + c;
        else if (kind == 3)
            keys = random_between(seed, 0, key_len);
        keys = keys < least ? least : keys;
        p->end_keys[c] = keys < key_len ? keys : key_len;
        p->uniform[c] = random_between(seed, 0, 9) == 0;
        p->wanted[c] = random_between(seed, 0, 2) > 0;
    }
}

/* Draws the first key of each query: by a window, or any. */
static void random_first_keys(uint64_t *seed, struct random_panel *p) {
    size_t window = random_between(seed, 1, p->panel.key_len);
    bool any = random_between(seed, 0, 2) == 0;

    for (size_t c = 0; c < p->panel.num_queries; c++) {
        size_t keys = p->end_keys[c];
        p->first_keys[c] = keys > window ? keys - window : 0;
        if (any)
            p->first_keys[c] = random_between(seed, 0, p->chunk ? keys : keys - 1);
    }
    p->panel.first_keys = p->first_keys;
}

/* Draws a bias that masks no pair, few of them, or most; or those from some key on, as
 * positions do. In a chunk it may mask all of a query's. */
static void random_bias(uint64_t *seed, struct random_panel *p) {
    static const size_t shares[] = {0, 0, 1, 9, 10};
    size_t share = shares[random_between(seed, 0, 4)], key_len = p->panel.key_len;
    size_t from = random_between(seed, 0, 1) * random_between(seed, 0, key_len);

    p->bias = random_rows(seed, p->panel.num_queries, key_len, key_len);
    for (size_t i = 0; i < p->panel.num_queries * key_len; i++) {
        if (i % key_len >= from && random_between(seed, 0, 9) < share)
            p->bias[i] = -INFINITY;
    }
    for (size_t c = 0; !p->chunk && c < p->panel.num_queries; c++)
        p->bias[c * key_len + p->first_keys[c]] = 1;
}

/* Returns whether a query multiplies the values of a key. */
static bool attends(const struct random_panel *p, size_t c, size_t key) {
    bool masked = p->bias != NULL && !p->uniform[c] &&
                  p->bias[c * p->panel.key_len + key] == -INFINITY;
    return key >= p->first_keys[c] && key < p->end_keys[c] && !masked;
}

/* Draws what layers of checkpoints need besides. */
static void random_extras(uint64_t *seed, struct random_panel *p) {
    if (random_between(seed, 0, 1) == 0)
        random_first_keys(seed, p);
    if (random_between(seed, 0, 1) == 0)
        random_bias(seed, p);
    if (random_between(seed, 0, 2) == 0)
        p->panel.softcap = 0.1F * (float)random_between(seed, 1, 500);
}

/* Makes the values of some key infinite or NaN. Queries that do not attend to it must not
 * meet them. */
static void spoil_values(uint64_t *seed, struct random_panel *p) {
    const struct query_panel *panel = &p->panel;
    size_t key = random_between(seed, 0, 4 * panel->key_len);
    for (size_t d = 0; key < panel->key_len && d < panel->head_size; d++)
        p->values[key * panel->values_ld + d] = d % 2 == 0 ? INFINITY : NAN;
}

/* Makes keys that nobody attends to NaN or infinite. */
static void spoil_keys(struct random_panel *p) {
    const struct query_panel *panel = &p->panel;
    for (size_t k = 0; k < panel->key_len; k++) {
        bool any = false;
        for (size_t c = 0; c < panel->num_queries; c++)
            any = any || (attends(p, c, k) && !p->uniform[c]);
        for (size_t d = 0; !any && d < panel->score_size; d++)
            p->keys[k * panel->keys_ld + d] = k % 2 == 0 ? NAN : INFINITY;
    }
}

/* Makes the words of keys and values, which are the numbers themselves for float32. */
static void fill_words(struct random_panel *p) {
    struct query_panel *panel = &p->panel;
    size_t rows = panel->key_len, key_floats = (rows - 1) * panel->keys_ld;
    size_t value_floats = (rows - 1) * panel->values_ld + panel->head_size;

    key_floats += panel->score_size;
    p->key_words = malloc(key_floats * sizeof(float));
    p->value_words = malloc(value_floats * sizeof(float));
    assert_true(p->key_words != NULL && p->value_words != NULL);
    memcpy(p->key_words, p->keys, key_floats * sizeof(float));
    memcpy(p->value_words, p->values, value_floats * sizeof(float));
    p->values_ld = panel->values_ld;
    if (kernels->k_step == 2) {
        if (panel->additive_score == NULL)
            kernels->convert_bf16(p->keys, panel->keys_ld, rows, panel->score_size,
                                  p->key_words, panel->keys_ld);
        kernels->pack_pairs_bf16(p->values, panel->values_ld, rows, panel->head_size,
                                 p->value_words, 2 * panel->values_ld);
        panel->values_ld *= 2;
    }
    panel->keys = p->key_words;
    panel->values = p->value_words;
}

static void fill_key_panels(uint64_t *seed, struct random_panel *p) {
    const struct query_panel *panel = &p->panel;
    size_t words = (panel->score_size + kernels->k_step - 1) / kernels->k_step;
    size_t ld = words + random_between(seed, 0, 1) * words;

    p->key_panels_ld = ld;
    p->key_panels = allocate(panel->key_len * ld + KEY_BLOCK);
    for (size_t k = 0; k < panel->key_len; k++) {
        size_t first = k / KEY_BLOCK * KEY_BLOCK, left = panel->key_len - first;
        size_t count = left < KEY_BLOCK ? left : KEY_BLOCK;
        for (size_t d = 0; d < words; d++)
            p->key_panels[first * ld + d * count + k - first] =
                panel->keys[k * panel->keys_ld + d];
    }
}

static void random_panel_init(uint64_t *seed, size_t num_queries, size_t head_size,
                              struct random_panel *p) {
    size_t gap = random_between(seed, 0, 1) * LARGEST_GAP, score_size = head_size;

    if (random_between(seed, 0, 1) == 0)
        score_size = random_between(seed, 1, 140);

    *p = (struct random_panel){.chunk = random_between(seed, 0, 2) == 0};
    p->panel = (struct query_panel){
        .num_queries = num_queries,
        .score_size = score_size,
        .head_size = head_size,
        .queries_ld = score_size + random_between(seed, 0, gap),
        .keys_ld = score_size + random_between(seed, 0, gap),
        .values_ld = head_size + random_between(seed, 0, gap),
        .outputs_ld = head_size + random_between(seed, 0, gap),
        .key_len = random_key_len(seed, p->chunk ? KERNEL_CHUNK_KEYS : 3000),
        .end_keys = p->end_keys,
        .uniform = p->uniform,
        .scale = 0.01F * (float)random_between(seed, 1, 300),
        .factor = random_between(seed, 0, 1) == 0 ? 1.0F : -0.7F,
    };
    struct query_panel *panel = &p->panel;
    p->queries = random_rows(seed, num_queries, panel->queries_ld, score_size);
    p->keys = random_rows(seed, panel->key_len, panel->keys_ld, score_size);
    p->values = random_rows(seed, panel->key_len, panel->values_ld, head_size);
    p->additive_score = random_rows(seed, 1, score_size, score_size);
    panel->queries = p->queries;
    if (random_between(seed, 0, 7) == 0)
        panel->additive_score = p->additive_score;
    random_masks(seed, p);
    if (random_between(seed, 0, 2) > 0)
        random_extras(seed, p);
    spoil_values(seed, p);
    spoil_keys(p);
    if (panel->key_len == 1 && !p->chunk && p->bias == NULL)
        memset(p->keys, 0xff, score_size * sizeof *p->keys); /* not even projected */
    fill_words(p);
    fill_key_panels(seed, p);
}

static void random_panel_deinit(struct random_panel *p) {
    free(p->queries);
    free(p->keys);
    free(p->values);
    free(p->additive_score);
    free(p->bias);
    free(p->key_words);
    free(p->value_words);
    free(p->key_panels);
}

/* Lays out the bias of queries first..first+panel->num_queries as a form reads it, with
 * NaN where it must not be used; NULL when there is none. The caller frees it. */
static float *lay_out_bias(const struct random_panel *p, size_t first, bool is_few,
                           struct query_panel *panel) {
    size_t step = kernels->columns, key_len = panel->key_len;
    if (p->bias == NULL)
        return NULL;

    panel->bias_ld = is_few ? (key_len + step - 1) / step * step : step;
    float *bias = allocate((is_few ? panel->num_queries : key_len) * panel->bias_ld);
    for (size_t c = 0; c < panel->num_queries; c++) {
        for (size_t k = p->first_keys[first + c]; k < p->end_keys[first + c]; k++)
            bias[is_few ? c * panel->bias_ld + k : k * panel->bias_ld + c] =
                p->bias[(first + c) * key_len + k];
    }
    return bias;
}

/* Points a panel at queries first..first+most of all, and at what they have. */
static void choose_queries(const struct random_panel *p, size_t first, size_t most,
                           struct results *results, struct query_panel *panel) {
    size_t left = panel->num_queries - first;

    panel->num_queries = left < most ? left : most;
    panel->queries += first * panel->queries_ld;
    panel->end_keys += first;
    panel->uniform += first;
    panel->outputs = results->outputs + first * panel->outputs_ld;
    if (panel->first_keys != NULL)
        panel->first_keys += first;
    panel->max = p->chunk ? results->max + first : NULL;
    panel->sum = p->chunk ? results->sum + first : NULL;
}

/* Runs one of the forms on at most `most` queries at a time. Outputs take the place of
 * queries that are as wide, except in a chunk. The caller frees the weights. */
static void attend(void (*form)(const struct query_panel *panel), size_t most,
                   const struct random_panel *p, struct results *results) {
    const struct query_panel *all = &p->panel;
    size_t size = all->score_size, bytes;
    bool in_place = !p->chunk && size == all->head_size;

    memset(results->outputs, 0xff, sizeof results->outputs);
    memset(results->max, 0xff, sizeof results->max);
    memset(results->sum, 0xff, sizeof results->sum);
    results->weights = allocate(all->num_queries * all->key_len);
    for (size_t c = 0; in_place && c < all->num_queries; c++)
        memcpy(results->outputs + c * all->outputs_ld, all->queries + c * all->queries_ld,
               size * sizeof(float));
    for (size_t first = 0; first < all->num_queries; first += most) {
        float *rows[KERNEL_FEW_MAX], *bias;
        struct query_panel panel = *all;
        bool any = panel.sums != NULL;

        choose_queries(p, first, most, results, &panel);
        panel.bias = bias = lay_out_bias(
            p, first, form != kernels->attend || kernels->few == SIZE_MAX, &panel);
        if (in_place) {
            panel.queries = panel.outputs;
            panel.queries_ld = panel.outputs_ld;
        }
        for (size_t c = 0; c < panel.num_queries; c++) {
            bool wanted = p->wanted[first + c];
            rows[c] = wanted ? results->weights + (first + c) * panel.key_len : NULL;
            any = any || wanted;
        }
        panel.weights = any ? rows : NULL;
        bytes = kernel_scratch_bytes(size, panel.head_size, panel.key_len, any);
        panel.scratch = allocate(bytes / sizeof(float));
        form(&panel);
        free(panel.scratch);
        free(bias);
    }
}

#endif
