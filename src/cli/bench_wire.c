/* SPDX-License-Identifier: Apache-2.0 */
/* bench_wire.c: times reading and printing JSON numbers. Each text is read by attnd, as
 * it reads a request's, and by jansson; and printed by attnd's printer and by the C
 * library's. The two take turns, so that each ratio is of neighbours in time. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/noise.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "wire/decimal/print.h"
#include "wire/json/tensor.h"
#include "wire/native/native.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS        128
#define WIDTH       768
#define NUMBERS     ((size_t)ROWS * WIDTH)
#define SCALE       1.7F
#define SECONDS_MIN 0.01 /* of one measurement; shorter work is repeated */
#define ROUNDS_MIN  5

#define NUMBER_MAX 32 /* bytes */

#define HEAD "{\"queries\":["
#define TAIL "]}"

/* What is timed, and on what. */
struct text {
    struct buf body;
    struct arena arena;
    float *numbers; /* [NUMBERS] what it says */
};

struct contender {
    const char *name;
    bool (*run)(struct text *text); /* reads the body, or writes it anew; false: failed,
                                       or the numbers read are others */
};

struct task {
    const char *name, *what;
    void (*make)(float *numbers); /* [NUMBERS] */
    const char *comma;            /* between two numbers */
    size_t (*put)(float value, char out[NUMBER_MAX]);
    struct contender contenders[2]; /* attnd's and the baseline */
};

/* --- texts --- */

static void make_outputs(float *numbers) {
    noise_fill(numbers, NUMBERS, SCALE);
}

/* Each row is the softmax of noise. */
static void make_weights(float *numbers) {
    noise_fill(numbers, NUMBERS, SCALE);
    for (float *row = numbers; row < numbers + NUMBERS; row += WIDTH) {
        double sum = 0;
        for (size_t i = 0; i < WIDTH; i++)
            sum += exp((double)row[i]);
        for (size_t i = 0; i < WIDTH; i++)
            row[i] = (float)(exp((double)row[i]) / sum);
    }
}

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
    size_t room = NUMBERS * (NUMBER_MAX + strlen(task->comma)) + 64;
    task->make(text->numbers);
    buf_init(&text->body, room);
    attn_status status = buf_reserve(&text->body, room);
    if (status == ATTN_OK)
        status = buf_append_text(&text->body, HEAD);
    for (size_t i = 0; i < NUMBERS && status == ATTN_OK; i++) {
        const char *before = i % WIDTH > 0 ? task->comma : i > 0 ? "],[" : "[";
        status = buf_append_text(&text->body, before);
        if (status == ATTN_OK)
            status = buf_append(&text->body, number, task->put(text->numbers[i], number));
    }
    return status == ATTN_OK && buf_append_text(&text->body, "]" TAIL) == ATTN_OK;
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

/* --- printing --- */

/* As printf() prints a number that has to read back to the same float32. */
static size_t put_with_snprintf(float value, char out[NUMBER_MAX]) {
    return (size_t)snprintf(out, NUMBER_MAX, "%.9g", (double)value);
}

static char *put_row_with_snprintf(const float *row, char *out) {
    for (size_t i = 0; i < WIDTH; i++) {
        out += put_with_snprintf(row[i], out);
        *out++ = ',';
    }
    return out;
}

static char *put_row_with_attnd(const float *row, char *out) {
    return wire_floats_print(row, WIDTH, out);
}

/* Writes the body anew; it has room for NUMBERS of NUMBER_MAX bytes. `put_row` writes a
 * row of numbers with a comma after each. */
static bool print_body(struct text *text, char *(*put_row)(const float *row, char *out)) {
    char *at = text->body.data + strlen(HEAD);
    for (size_t i = 0; i < ROWS; i++) {
        *at++ = '[';
        at = put_row(text->numbers + i * WIDTH, at);
        at[-1] = ']'; /* over the last comma */
        *at++ = ',';
    }
    at = stpcpy(at - 1, TAIL);
    text->body.size = (size_t)(at - text->body.data);
    return true;
}

static bool print_with_attnd(struct text *text) {
    return print_body(text, put_row_with_attnd);
}

static bool print_with_snprintf(struct text *text) {
    return print_body(text, put_row_with_snprintf);
}

static const struct task tasks[] = {
    {"read 17 digits",
     "float32 as json.dumps() prints them",
     make_outputs,
     ", ",
     put_as_double,
     {{"attnd", read_with_attnd}, {"jansson", read_with_jansson}}},
    {"read indented",
     "the same, each on a line of its own",
     make_outputs,
     ",\n            ",
     put_as_double,
     {{"attnd", read_with_attnd}, {"jansson", read_with_jansson}}},
    {"read shortest",
     "float32 as attnd prints them",
     make_outputs,
     ",",
     wire_float_print,
     {{"attnd", read_with_attnd}, {"jansson", read_with_jansson}}},
    {"print outputs",
     "float32 from -1.7 to 1.7",
     make_outputs,
     ",",
     wire_float_print,
     {{"attnd", print_with_attnd}, {"snprintf", print_with_snprintf}}},
    {"print weights",
     "float32 of softmax over 768 keys",
     make_weights,
     ",",
     wire_float_print,
     {{"attnd", print_with_attnd}, {"snprintf", print_with_snprintf}}},
};

/* --- timing --- */

struct times {
    double seconds[2][BENCH_ROUNDS_MAX];
    size_t bytes[2]; /* of the text that each reads or writes */
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
    } while ((double)elapsed < SECONDS_MIN * 1e9);
    return (double)elapsed * 1e-9 / (double)runs;
}

/* Runs each once: what it reads, or what it wrote and attnd reads, must be the numbers.
 */
static bool check_task(const struct task *task, struct text *text, struct times *times) {
    for (size_t c = 0; c < 2; c++) {
        if (!task->contenders[c].run(text) || !read_with_attnd(text))
            return false;
        times->bytes[c] = text->body.size;
    }
    return true;
}

static bool time_task(const struct task *task, struct text *text, size_t seconds,
                      struct times *times) {
    int64_t end = clock_now_ns() + (int64_t)seconds * 1000000000;
    size_t i = 0;
    while (i < BENCH_ROUNDS_MAX && (i < ROUNDS_MIN || clock_now_ns() < end)) {
        for (size_t c = 0; c < 2; c++) {
            times->seconds[c][i] = time_one(&task->contenders[c], text);
            if (times->seconds[c][i] < 0)
                return false;
        }
        times->rounds = ++i;
    }
    return true;
}

static void print_text(const struct task *task, const struct times *times) {
    printf("%s: %zu %s, %.1f bytes each; %zu rounds\n", task->name, NUMBERS, task->what,
           (double)times->bytes[0] / (double)NUMBERS, times->rounds);
    for (size_t c = 0; c < 2; c++) {
        struct bench_spread s = bench_spread(times->seconds[c], times->rounds);
        printf("  %-8s %8.1f MB/s  %7.2f ns a number (%.2f..%.2f)  %6.2fx %s\n",
               task->contenders[c].name, (double)times->bytes[c] / s.median * 1e-6,
               s.median / (double)NUMBERS * 1e9, s.min / (double)NUMBERS * 1e9,
               s.max / (double)NUMBERS * 1e9,
               bench_ratio(times->seconds[1], times->seconds[c], times->rounds),
               task->contenders[1].name);
    }
    fflush(stdout);
}

static void print_json(const struct task *task, const struct times *times) {
    printf("{\"task\":\"%s\",\"numbers\":%zu,\"bytes\":%zu,\"rounds\":%zu,\"results\":[",
           task->name, NUMBERS, times->bytes[0], times->rounds);
    for (size_t c = 0; c < 2; c++) {
        struct bench_spread s = bench_spread(times->seconds[c], times->rounds);
        printf(
            "%s{\"name\":\"%s\",\"bytes\":%zu,\"mb_per_s\":%.3f,\"ns_per_number\":%.4f,"
            "\"min_ns\":%.4f,\"max_ns\":%.4f,\"over_baseline\":%.4f}",
            c > 0 ? "," : "", task->contenders[c].name, times->bytes[c],
            (double)times->bytes[c] / s.median * 1e-6, s.median / (double)NUMBERS * 1e9,
            s.min / (double)NUMBERS * 1e9, s.max / (double)NUMBERS * 1e9,
            bench_ratio(times->seconds[1], times->seconds[c], times->rounds));
    }
    printf("]}\n");
    fflush(stdout);
}

static bool run_task(const struct config *config, const struct task *task,
                     struct text *text) {
    static struct times times; /* too large for a stack */
    bool done = make_text(text, task) && check_task(task, text, &times) &&
                time_task(task, text, config->bench.seconds, &times);
    if (done && config->bench.json)
        print_json(task, &times);
    else if (done)
        print_text(task, &times);
    buf_deinit(&text->body);
    return done;
}

int bench_wire(const struct config *config) {
    struct text text = {.numbers = calloc(NUMBERS, sizeof(float))};
    bool done = text.numbers != NULL;
    arena_init(&text.arena, 2 * NUMBERS * sizeof(float));
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0] && done; i++) {
        done = run_task(config, &tasks[i], &text);
        if (!done)
            fprintf(stderr, "attnd: bench --wire: cannot %s\n", tasks[i].name);
    }
    arena_deinit(&text.arena);
    free(text.numbers);
    return done ? 0 : 1;
}
