/* SPDX-License-Identifier: Apache-2.0 */
/* program.c: times attn_call() beside the same numbers by attn_dot_product_run(), which
 * reads no request and makes no reply: what keys receive, and the entropy of queries, of
 * 9 heads of size 64. Both share the work among THREADS threads. Each round times both
 * in turns, and medians are printed.
 *
 *     ninja -C build-release tests/bench_program
 *     build-release/tests/bench_program THREADS ROUNDS TOKENS... */
#include <attnd/dot_product.h>
#include <attnd/program.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEADS = 9, SIZE = 64, ROUNDS_MAX = 99, THREADS_MAX = 64 };

static void fail(const char *text) {
    fprintf(stderr, "%s\n", text);
    exit(EXIT_FAILURE);
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* --- a plain parallel loop --- */

struct shared_loop {
    void (*task)(void *data, size_t index, size_t thread);
    void *data;
    size_t count;
    atomic_size_t next;
};

struct loop_thread {
    struct shared_loop *loop;
    size_t number;
    pthread_t thread;
};

static void *take_indices(void *argument) {
    const struct loop_thread *self = argument;
    struct shared_loop *loop = self->loop;
    size_t index;
    while ((index = atomic_fetch_add(&loop->next, 1)) < loop->count)
        loop->task(loop->data, index, self->number);
    return NULL;
}

/* attn_parallel.run, with threads of its own for each loop */
static void run_plainly(void *context, size_t count,
                        void (*task)(void *data, size_t index, size_t thread),
                        void *data) {
    const size_t *threads = context;
    struct shared_loop loop = {.task = task, .data = data, .count = count};
    struct loop_thread all[THREADS_MAX];
    for (size_t i = 0; i < *threads; i++) {
        all[i] = (struct loop_thread){.loop = &loop, .number = i};
        if (i > 0 && pthread_create(&all[i].thread, NULL, take_indices, &all[i]) != 0)
            fail("no thread");
    }
    take_indices(&all[0]);
    for (size_t i = 1; i < *threads; i++)
        pthread_join(all[i].thread, NULL);
}

/* --- what is timed --- */

static double time_library(const float *queries, const float *keys, size_t tokens,
                           size_t threads, float *ret_received, float *ret_entropy) {
    const attn_parallel parallel = {threads, run_plainly, &threads};
    const attn_dot_product options = {
        .num_heads = HEADS, .head_size = SIZE, .scale = 1 / sqrt(SIZE)};
    const attn_request request = {
        .num_sequences = 1,
        .query_lens = &tokens,
        .key_lens = &tokens,
        .queries = queries,
        .keys = keys,
        .causal = true,
        .omit_outputs = true,
        .reduce = {.received = true, .entropy = true},
        .parallel = threads > 1 ? &parallel : NULL,
    };
    const attn_result result = {.received = ret_received, .entropy = ret_entropy};
    attn_sizes sizes;

    double begun = now_ms();
    if (attn_dot_product_plan(&options, &request, &sizes, NULL) != ATTN_OK)
        fail("the request is refused");
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    if (scratch == NULL)
        fail("out of memory");
    attn_dot_product_run(&options, &request, &sizes, scratch, &result);
    double took = now_ms() - begun;
    free(scratch);
    return took;
}

static double time_call(attn_pool *pool, const float *queries, const float *keys,
                        size_t tokens, const float *received, const float *entropy) {
    const size_t shape[] = {tokens, HEADS, SIZE};
    const attn_array arrays[] = {{"queries", "F32", 3, shape, NULL, queries},
                                 {"keys", "F32", 3, shape, NULL, keys}};
    attn_error error;
    attn_reply *reply;

    double begun = now_ms();
    if (attn_call(pool, NULL, "{\"causal\":true,\"need\":[\"received\",\"entropy\"]}",
                  arrays, 2, NULL, &reply, &error) != ATTN_OK)
        fail(error.text);
    double took = now_ms() - begun;
    if (memcmp(attn_reply_array(reply, 0)->data, received,
               tokens * HEADS * sizeof(float)) != 0 ||
        memcmp(attn_reply_array(reply, 1)->data, entropy,
               tokens * HEADS * sizeof(float)) != 0)
        fail("the numbers differ");
    attn_reply_destroy(reply);
    return took;
}

static int compare_times(const void *a, const void *b) {
    const double *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static void compare(attn_pool *pool, size_t threads, size_t rounds, size_t tokens) {
    size_t count = tokens * HEADS * SIZE;
    float *numbers = calloc(2 * count, sizeof *numbers);
    float *results = calloc(2 * tokens * HEADS, sizeof *results);
    double library[ROUNDS_MAX], call[ROUNDS_MAX];

    if (numbers == NULL || results == NULL)
        fail("out of memory");
    for (size_t i = 0; i < 2 * count; i++)
        numbers[i] = (float)(rand() % 2000 - 1000) / 1000;
    for (size_t i = 0; i < rounds; i++) {
        library[i] = time_library(numbers, numbers + count, tokens, threads, results,
                                  results + tokens * HEADS);
        call[i] = time_call(pool, numbers, numbers + count, tokens, results,
                            results + tokens * HEADS);
    }
    qsort(library, rounds, sizeof library[0], compare_times);
    qsort(call, rounds, sizeof call[0], compare_times);
    printf("%zu tokens, %zu thread%s: attn_dot_product_run() %.1f ms, attn_call() %.1f "
           "ms, %.3f times\n",
           tokens, threads, threads > 1 ? "s" : "", library[rounds / 2], call[rounds / 2],
           call[rounds / 2] / library[rounds / 2]);
    free(results);
    free(numbers);
}

int main(int argc, char **argv) {
    size_t threads = argc > 3 ? strtoul(argv[1], NULL, 10) : 0;
    size_t rounds = argc > 3 ? strtoul(argv[2], NULL, 10) : 0;
    attn_pool *pool;

    if (threads == 0 || threads > THREADS_MAX || rounds == 0 || rounds > ROUNDS_MAX)
        fail("usage: bench_program THREADS ROUNDS TOKENS...");
    if (attn_pool_create(threads, &pool, NULL) != ATTN_OK)
        fail("out of memory");
    for (int i = 3; i < argc; i++)
        compare(pool, threads, rounds, strtoul(argv[i], NULL, 10));
    attn_pool_destroy(pool);
    return 0;
}
