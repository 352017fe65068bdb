/* SPDX-License-Identifier: Apache-2.0 */
/* heads.c: times what leaving heads out saves, and what the analysis of heads costs, on
 * one thread. Each round times all of them in turn; printed are medians of the rounds.
 *
 *     ninja -C build-release tests/bench_heads
 *     build-release/tests/bench_heads FILE PRUNED
 *
 * FILE is a checkpoint that needs no options, and PRUNED what the Python package made of
 * it with half of its heads removed. */
#include <attnd/heads.h>
#include <attnd/library.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 15

enum { PLAIN, MASKED, PRUNED, ANALYSED, NUM_TIMES };

static void fail(const char *text) {
    fprintf(stderr, "%s\n", text);
    exit(EXIT_FAILURE);
}

static void *allocate(size_t bytes) {
    void *memory = aligned_alloc(ATTN_ALIGNMENT, (bytes + 63) / 64 * 64);
    if (memory == NULL)
        fail("out of memory");
    memset(memory, 0, bytes); /* so that no page is made while the clock runs */
    return memory;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static attn_model *load(const char *path) {
    attn_model *model;
    attn_error error;
    const attn_engine_options engine = {.serve_only = true};
    if (attn_model_load("timed", path, NULL, &engine, &model, &error) != ATTN_OK)
        fail(error.text);
    return model;
}

static double time_layer(const attn_model *model, const attn_request *request) {
    attn_sizes sizes;
    if (attn_plan(model, request, &sizes, NULL) != ATTN_OK)
        fail("the request does not fit the model");
    void *scratch = allocate(sizes.scratch_bytes);
    attn_result result = {.outputs = allocate(sizes.outputs * sizeof(float))};

    double begun = now_ms();
    attn_run(model, request, &sizes, scratch, &result);
    double took = now_ms() - begun;
    free(scratch);
    free(result.outputs);
    return took;
}

static double time_analysis(const attn_model *model, const attn_request *request) {
    size_t num_heads = attn_model_get_info(model)->num_heads;
    attn_sizes sizes;
    attn_heads_plan(model, request, &sizes, NULL);
    void *scratch = allocate(sizes.scratch_bytes);
    attn_heads heads = {.num_heads = num_heads,
                        .sums = allocate(num_heads * sizeof *heads.sums),
                        .gram = allocate(num_heads * num_heads * sizeof *heads.gram)};

    double begun = now_ms();
    attn_heads_add(model, request, &sizes, scratch, &heads);
    double took = now_ms() - begun;
    free(scratch);
    free(heads.sums);
    free(heads.gram);
    return took;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_shape(const attn_model *model, const attn_model *pruned, size_t batch,
                       size_t tokens) {
    const attn_model_info *info = attn_model_get_info(model);
    size_t *lens = allocate(batch * sizeof *lens);
    float *rows = allocate(batch * tokens * info->width.query * sizeof *rows);
    float *mask = allocate(info->num_heads * sizeof *mask);
    double times[NUM_TIMES][ROUNDS];

    for (size_t i = 0; i < batch; i++)
        lens[i] = tokens;
    for (size_t i = 0; i < batch * tokens * info->width.query; i++)
        rows[i] = (float)(drand48() - 0.5);
    for (size_t h = 0; h < info->num_heads; h++)
        mask[h] = (float)(h % 2);
    attn_request plain = {.num_sequences = batch,
                          .query_lens = lens,
                          .key_lens = lens,
                          .queries = rows,
                          .keys = rows,
                          .values = rows};
    attn_request masked = plain;
    masked.head_mask = mask;

    for (size_t r = 0; r < ROUNDS; r++) {
        times[PLAIN][r] = time_layer(model, &plain);
        times[MASKED][r] = time_layer(model, &masked);
        times[PRUNED][r] = time_layer(pruned, &plain);
        times[ANALYSED][r] = time_analysis(model, &plain);
    }
    for (size_t i = 0; i < NUM_TIMES; i++)
        qsort(times[i], ROUNDS, sizeof times[i][0], compare_doubles);
    double whole = times[PLAIN][ROUNDS / 2];
    printf("| %zu,%zu,%zu,%zu | %.2f ms |", batch, tokens, info->width.query,
           info->num_heads, whole);
    for (size_t i = MASKED; i < NUM_TIMES; i++)
        printf(" %.2fx |", times[i][ROUNDS / 2] / whole);
    printf("\n");
    free(lens);
    free(rows);
    free(mask);
}

int main(int argc, char **argv) {
    attn_error error;
    if (argc != 3)
        fail("usage: bench_heads FILE PRUNED");
    if (attn_init(&error) != ATTN_OK)
        fail(error.text);

    attn_model *model = load(argv[1]), *pruned = load(argv[2]);
    printf("| shape (B,T,width,heads) | layer | head_mask, half 0 | half pruned | "
           "analysis |\n|---|---|---|---|---|\n");
    time_shape(model, pruned, 8, 512);
    time_shape(model, pruned, 1, 128);
    time_shape(model, pruned, 1, 2048);
    attn_model_destroy(model);
    attn_model_destroy(pruned);
    return 0;
}
