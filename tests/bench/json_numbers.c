/* SPDX-License-Identifier: Apache-2.0 */
/* json_numbers.c: how fast attnd reads and prints JSON numbers: `json_numbers SECONDS`,
 * for each text of 128 rows of 768 numbers. attnd reads each text as it reads a request,
 * next to jansson, and prints it, next to snprintf(). The two take turns in every round.
 * Fails where they read other numbers than those that were printed. */
#include "base/arena.h"
#include "base/buf.h"
#include "base/noise.h"
#include "bench/rounds.h"
#include "wire/decimal/print.h"
#include "wire/json/tensor.h"
#include "wire/native/native.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS    128
#define WIDTH   768
#define NUMBERS ((size_t)ROWS * WIDTH)
#define SCALE   1.7F

#define NUMBER_MAX 32 /* bytes of a printed number */

#define HEAD "{\"queries\":["
#define TAIL "]}"

/* A text to read or to print. */
struct wire_text {
    struct buf body;
    struct arena arena;
    float *numbers; /* [NUMBERS], those in the body */
};

/* Reads the body, or prints it again. */
struct wire_contender {
    const char *name;
    /* Returns false when that fails, or when it reads other numbers than those that were
     * printed. */
    bool (*read)(struct wire_text *text);
    /* Prints numbers with a comma after each. Returns the end. NULL: it reads. */
    char *(*print)(const float *numbers, size_t count, char *out);
};

struct wire_case {
    const char *name, *description;
    void (*make)(float *numbers); /* [NUMBERS] */
    const char *comma;            /* between two numbers, with blanks */
    size_t (*print_number)(float value, char out[NUMBER_MAX]);
    const struct wire_contender *contenders; /* [2], attnd's and the baseline */
};

/* --- texts --- */

static void make_outputs(float *numbers) {
    noise_fill(numbers, NUMBERS, SCALE);
}

/* Makes rows that are softmax of noise. */
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

/* Prints a float32 as json.dumps() of Python does: the shortest decimal that reads back
 * to the same double. */
static size_t print_as_double(float value, char out[NUMBER_MAX]) {
    int length = 0;
    for (int digits = 15; digits <= 17; digits++) {
        length = snprintf(out, NUMBER_MAX, "%.*g", digits, (double)value);
        if (strtod(out, NULL) == (double)value)
            break;
    }
    return (size_t)length;
}

static bool make_text(struct wire_text *text, const struct wire_case *wire_case) {
    char number[NUMBER_MAX];
    size_t body_max = NUMBERS * (NUMBER_MAX + strlen(wire_case->comma)) + 64;

    wire_case->make(text->numbers);
    buf_init(&text->body, body_max);
    buf_append_text(&text->body, HEAD);
    for (size_t i = 0; i < NUMBERS; i++) {
        buf_append_text(&text->body, i % WIDTH > 0 ? wire_case->comma
                                     : i > 0       ? "],["
                                                   : "[");
        buf_append(&text->body, number,
                   wire_case->print_number(text->numbers[i], number));
    }
    buf_append_text(&text->body, "]" TAIL);
    return text->body.status == ATTN_OK;
}

/* --- reading --- */

static bool same_bits(const float *a, const float *b) {
    return memcmp((const char *)a, (const char *)b, NUMBERS * sizeof *a) == 0;
}

static bool read_with_attnd(struct wire_text *text) {
    static const attn_model *const none;
    const struct wire_input input = {
        .body = text->body.data, .size = text->body.size, .models = &none};
    struct wire_source source;
    struct wire_problem problem;
    struct wire_tensor tensor;
    const struct wire_cursor cursor = {.body = text->body.data, .problem = &problem};
    const struct wire_tensor_form form = {WIRE_LEVELS_UNBATCHED, WIRE_LEVELS_BATCHED,
                                          false, false};

    arena_reset(&text->arena);
    return wire_native_scan(&input, &source, &problem) &&
           wire_tensor_read(&cursor, &source.values[WIRE_FIELD_QUERIES].text, "queries",
                            &form, &text->arena, &tensor) &&
           same_bits(tensor.rows, text->numbers);
}

static bool read_with_jansson(struct wire_text *text) {
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

/* Prints numbers so that they read back to the same float32. */
static char *print_with_snprintf(const float *numbers, size_t count, char *out) {
    for (size_t i = 0; i < count; i++)
        out += snprintf(out, NUMBER_MAX, "%.9g,", (double)numbers[i]);
    return out;
}

/* Prints the body again; it has room for NUMBERS of NUMBER_MAX bytes. */
static void print_body(struct wire_text *text, const struct wire_contender *contender) {
    char *at = text->body.data + strlen(HEAD);
    for (size_t i = 0; i < ROWS; i++) {
        *at++ = '[';
        at = contender->print(text->numbers + i * WIDTH, WIDTH, at);
        at[-1] = ']'; /* over the last comma */
        *at++ = ',';
    }
    at = stpcpy(at - 1, TAIL);
    text->body.size = (size_t)(at - text->body.data);
}

static bool run_contender(const struct wire_contender *contender,
                          struct wire_text *text) {
    if (contender->print == NULL)
        return contender->read(text);
    print_body(text, contender);
    return true;
}

static const struct wire_contender readers[] = {{"attnd", read_with_attnd, NULL},
                                                {"jansson", read_with_jansson, NULL}};
static const struct wire_contender printers[] = {{"attnd", NULL, wire_floats_print},
                                                 {"snprintf", NULL, print_with_snprintf}};

/* clang-format off */
static const struct wire_case wire_cases[] = {
    {"read 17 digits", "float32 as json.dumps() prints them",
     make_outputs, ", ", print_as_double, readers},
    {"read indented", "the same, each on a line of its own",
     make_outputs, ",\n            ", print_as_double, readers},
    {"read shortest", "float32 as attnd prints them",
     make_outputs, ",", wire_float_print, readers},
    {"print outputs", "float32 from -1.7 to 1.7",
     make_outputs, ",", wire_float_print, printers},
    {"print weights", "float32 of softmax over 768 keys",
     make_weights, ",", wire_float_print, printers},
};
/* clang-format on */

/* --- timing --- */

/* A case, its text and its times. */
struct wire_rounds {
    const struct wire_case *wire_case;
    struct wire_text *text;
    const struct wire_contender *contender; /* whose turn it is */
    double seconds[2][BENCH_ROUNDS_MAX];
    size_t bytes[2]; /* of the text that each reads or writes */
    size_t rounds;
    bool failed; /* in some turn */
};

/* Runs each contender once. After each, attnd must read the right numbers from the
 * body. */
static bool check_case(struct wire_rounds *times) {
    for (size_t c = 0; c < 2; c++) {
        if (!run_contender(&times->wire_case->contenders[c], times->text) ||
            !read_with_attnd(times->text))
            return false;
        times->bytes[c] = times->text->body.size;
    }
    return true;
}

static void run_wire_turn(void *context) {
    struct wire_rounds *times = context;
    times->failed |= !run_contender(times->contender, times->text);
}

static void run_wire_round(void *context, size_t index) {
    struct wire_rounds *times = context;
    for (size_t c = 0; c < 2; c++) {
        times->contender = &times->wire_case->contenders[c];
        times->seconds[c][index] = bench_time(1, run_wire_turn, times);
    }
}

static void print_case(const struct wire_rounds *times) {
    const struct wire_case *wire_case = times->wire_case;

    printf("%s: %zu %s, %.1f bytes each; %zu rounds\n", wire_case->name, NUMBERS,
           wire_case->description, (double)times->bytes[0] / (double)NUMBERS,
           times->rounds);
    for (size_t c = 0; c < 2; c++) {
        struct bench_spread s = bench_spread(times->seconds[c], times->rounds);
        printf("  %-8s %8.1f MB/s  %7.2f ns a number (%.2f..%.2f)  %6.2fx %s\n",
               wire_case->contenders[c].name, (double)times->bytes[c] / s.median * 1e-6,
               s.median / (double)NUMBERS * 1e9, s.min / (double)NUMBERS * 1e9,
               s.max / (double)NUMBERS * 1e9,
               bench_ratio(times->seconds[1], times->seconds[c], times->rounds),
               wire_case->contenders[1].name);
    }
    fflush(stdout);
}

static bool time_case(size_t seconds, const struct wire_case *wire_case,
                      struct wire_text *text) {
    static struct wire_rounds times; /* too large for a stack */

    times.wire_case = wire_case;
    times.text = text;
    bool done = make_text(text, wire_case) && check_case(&times);
    if (done)
        times.rounds = bench_rounds(seconds, run_wire_round, &times);
    done = done && !times.failed;
    if (done)
        print_case(&times);
    times.text = NULL; /* which is the caller's */
    buf_deinit(&text->body);
    return done;
}

int main(int argc, char **argv) {
    struct wire_text text = {.numbers = calloc(NUMBERS, sizeof(float))};
    size_t seconds = argc > 1 ? strtoul(argv[1], NULL, 10) : 2;
    bool done = text.numbers != NULL;

    arena_init(&text.arena, 2 * NUMBERS * sizeof(float));
    for (size_t i = 0; i < sizeof wire_cases / sizeof wire_cases[0] && done; i++) {
        done = time_case(seconds, &wire_cases[i], &text);
        if (!done)
            fprintf(stderr, "cannot %s\n", wire_cases[i].name);
    }
    arena_deinit(&text.arena);
    free(text.numbers);
    return done ? 0 : 1;
}
