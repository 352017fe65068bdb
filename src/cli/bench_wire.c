/* SPDX-License-Identifier: Apache-2.0 */
/* bench_wire.c: times reading JSON numbers. Each text is read by attnd, as it reads a
 * request's, and by jansson, in turns, so that each ratio is of neighbours in time. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/noise.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "wire/float_text.h"
#include "wire/native.h"
#include "wire/tensor_text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS          128
#define WIDTH         768
#define NUMBERS       ((size_t)ROWS * WIDTH)
#define SCALE         1.7F
#define LEAST_SECONDS 0.01 /* of one measurement; shorter work is repeated */
#define LEAST_ROUNDS  5

#define NUMBER_MAX 32 /* bytes */

/* What is timed, and on what. */
struct text {
    struct buf body;
    struct arena arena;
    float *numbers; /* [NUMBERS] what it says */
};

struct contender {
    const char *name;
    bool (*run)(struct text *text); /* false: it failed, or the numbers are others */
};

struct task {
    const char *name, *what;
    const char *comma; /* between two numbers */
    size_t (*put)(float value, char out[NUMBER_MAX]);
    struct contender contenders[2]; /* attnd's and the baseline */
};

/* --- texts --- */

/* As json.dumps() of Python prints a float32: the shortest decimal that reads back to the
 * same double. */
static size_t put_as_double(float value, char out[NUMBER_MAX]) {
    int length = 0;
    for (int digits = 15; digits <= 17; digits++) {
        length = snprintf(out, NUMBER_MAX, "%.*g", digits, (double)value);
        if (strtod(out, NULL) == (double)value)
            break;
    }
    return (size_t)length;
}

static bool make_text(struct text *text, const struct task *task) {
    char number[NUMBER_MAX];
    buf_init(&text->body, NUMBERS * (NUMBER_MAX + strlen(task->comma)) + 64);
    attnd_status status = buf_append_text(&text->body, "{\"queries\":[");
    for (size_t i = 0; i < NUMBERS && status == ATTND_OK; i++) {
        const char *before = i % WIDTH > 0 ? task->comma : i > 0 ? "],[" : "[";
        status = buf_append_text(&text->body, before);
        if (status == ATTND_OK)
            status = buf_append(&text->body, number, task->put(text->numbers[i], number));
    }
    return status == ATTND_OK && buf_append_text(&text->body, "]]}") == ATTND_OK;
}

/* --- reading --- */

static bool same_bits(const float *a, const float *b) {
    return memcmp((const char *)a, (const char *)b, NUMBERS * sizeof *a) == 0;
}

static bool read_with_attnd(struct text *text) {
    struct wire_native_scan scan;
    struct wire_problem problem;
    struct wire_tensor tensor;
    arena_reset(&text->arena);
    return wire_native_scan(text->body.data, text->body.size, &scan, &problem) &&
           wire_tensor_read(text->body.data, &scan.members[WIRE_QUERIES], "queries",
                            WIRE_LEVELS_UNBATCHED, WIRE_LEVELS_BATCHED, &text->arena,
                            &tensor, &problem) &&
           same_bits(tensor.rows, text->numbers);
}

static bool read_with_jansson(struct text *text) {
    json_t *root = json_loadb(text->body.data, text->body.size, 0, NULL);
    const json_t *rows = json_object_get(root, "queries");
    arena_reset(&text->arena);
    float *out = arena_alloc(&text->arena, NUMBERS, sizeof *out);
    bool read = out != NULL && json_array_size(rows) == ROWS;
    for (size_t i = 0; i < NUMBERS && read; i++)
        out[i] = (float)json_number_value(
            json_array_get(json_array_get(rows, i / WIDTH), i % WIDTH));
    json_decref(root);
    return read && same_bits(out, text->numbers);
}

static const struct task tasks[] = {
    {"read 17 digits",
     "float32 as json.dumps() prints them",
     ", ",
     put_as_double,
     {{"attnd", read_with_attnd}, {"jansson", read_with_jansson}}},
    {"read indented",
     "the same, each on a line of its own",
     ",\n            ",
     put_as_double,
     {{"attnd", read_with_attnd}, {"jansson", read_with_jansson}}},
    {"read shortest",
     "float32 as attnd prints them",
     ",",
     wire_float_text,
     {{"attnd", read_with_attnd}, {"jansson", read_with_jansson}}},
};

/* --- timing --- */

struct times {
    double seconds[2][BENCH_ROUNDS_MAX];
    size_t rounds;
};

/* Seconds of one run; what is short is repeated and divided. Negative when it failed. */
static double time_one(const struct contender *contender, struct text *text) {
    int64_t began = clock_now_ns(), elapsed;
    size_t runs = 0;
    do {
        if (!contender->run(text))
            return -1;
        runs++;
        elapsed = clock_now_ns() - began;
    } while ((double)elapsed < LEAST_SECONDS * 1e9);
    return (double)elapsed * 1e-9 / (double)runs;
}

static bool time_task(const struct task *task, struct text *text, size_t seconds,
                      struct times *times) {
    int64_t end = clock_now_ns() + (int64_t)seconds * 1000000000;
    size_t i = 0;
    while (i < BENCH_ROUNDS_MAX && (i < LEAST_ROUNDS || clock_now_ns() < end)) {
        for (size_t c = 0; c < 2; c++) {
            times->seconds[c][i] = time_one(&task->contenders[c], text);
            if (times->seconds[c][i] < 0)
                return false;
        }
        times->rounds = ++i;
    }
    return true;
}

static void print_text(const struct task *task, const struct text *text,
                       const struct times *times) {
    double bytes = (double)text->body.size;
    printf("%s: %zu %s, %.1f bytes each; %zu rounds\n", task->name, NUMBERS, task->what,
           bytes / (double)NUMBERS, times->rounds);
    for (size_t c = 0; c < 2; c++) {
        struct bench_spread s = bench_spread(times->seconds[c], times->rounds);
        printf("  %-8s %8.1f MB/s  %7.2f ns a number (%.2f..%.2f)  %6.2fx %s\n",
               task->contenders[c].name, bytes / s.median * 1e-6,
               s.median / (double)NUMBERS * 1e9, s.least / (double)NUMBERS * 1e9,
               s.most / (double)NUMBERS * 1e9,
               bench_ratio(times->seconds[1], times->seconds[c], times->rounds),
               task->contenders[1].name);
    }
    fflush(stdout);
}

static void print_json(const struct task *task, const struct text *text,
                       const struct times *times) {
    double bytes = (double)text->body.size;
    printf("{\"task\":\"%s\",\"numbers\":%zu,\"bytes\":%zu,\"rounds\":%zu,\"results\":[",
           task->name, NUMBERS, text->body.size, times->rounds);
    for (size_t c = 0; c < 2; c++) {
        struct bench_spread s = bench_spread(times->seconds[c], times->rounds);
        printf("%s{\"name\":\"%s\",\"mb_per_s\":%.3f,\"ns_per_number\":%.4f,"
               "\"min_ns\":%.4f,\"max_ns\":%.4f,\"over_baseline\":%.4f}",
               c > 0 ? "," : "", task->contenders[c].name, bytes / s.median * 1e-6,
               s.median / (double)NUMBERS * 1e9, s.least / (double)NUMBERS * 1e9,
               s.most / (double)NUMBERS * 1e9,
               bench_ratio(times->seconds[1], times->seconds[c], times->rounds));
    }
    printf("]}\n");
    fflush(stdout);
}

static bool run_task(const struct config *config, const struct task *task,
                     struct text *text) {
    static struct times times; /* too large for a stack */
    bool done = make_text(text, task) && time_task(task, text, config->seconds, &times);
    if (done && config->json)
        print_json(task, text, &times);
    else if (done)
        print_text(task, text, &times);
    buf_deinit(&text->body);
    return done;
}

int bench_wire(const struct config *config) {
    struct text text = {.numbers = calloc(NUMBERS, sizeof(float))};
    bool done = text.numbers != NULL;
    arena_init(&text.arena, 2 * NUMBERS * sizeof(float));
    if (done)
        noise_fill(text.numbers, NUMBERS, SCALE);
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0] && done; i++) {
        done = run_task(config, &tasks[i], &text);
        if (!done)
            fprintf(stderr, "attnd: bench --wire: cannot %s\n", tasks[i].name);
    }
    arena_deinit(&text.arena);
    free(text.numbers);
    return done ? 0 : 1;
}
