/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_given.c: random requests of POST /v1/attention/dot-product with every
 * reduction, right and wrong ones. JSON and safetensors of the same request are refused
 * alike, or are planned and run to the same bits. */
#include "weights_file.h"
#include "wire/safetensors/safetensors.h"
#include "wire_fixture.h"

#include <math.h>

#define NUM_REQUESTS  4000
#define MAX_SEQUENCES 3
#define MAX_NUMBERS   512 /* of a field */
#define MAX_RANK      4

/* How sequences lie: one alone, as many rows in each, or packed one after the other. */
enum layout { ALONE, EVEN, RAGGED };

/* A request as both bodies, which are written together. */
struct sample {
    uint64_t seed;
    enum layout layout;
    size_t sequences, queries[MAX_SEQUENCES], keys[MAX_SEQUENCES];
    size_t heads, fewest_keys, fewest_queries;
    bool wrong; /* some of its ranges and indices may be */
    char text[1 << 16], metadata[512], need[128];
    struct weights_file file;
};

static size_t draw(struct sample *s, size_t low, size_t high) {
    return low + fixture_random(&s->seed) % (high - low + 1);
}

static bool toss(struct sample *s) {
    return draw(s, 0, 1) == 0;
}

static bool is_wrong(struct sample *s) {
    return s->wrong && draw(s, 0, 15) == 0;
}

/* --- bodies --- */

/* Adds lists of lists to the text, and returns the numbers that follow theirs. */
static const double *add_lists(char *text, bool booleans, const size_t *axes, size_t rank,
                               const double *numbers) {
    if (rank == 0 && booleans) {
        strcat(text, *numbers != 0 ? "true" : "false");
        return numbers + 1;
    }
    if (rank == 0) {
        sprintf(text + strlen(text), "%.9g", *numbers);
        return numbers + 1;
    }
    for (size_t i = 0; i < axes[0]; i++) {
        strcat(text, i == 0 ? "[" : ",");
        numbers = add_lists(text, booleans, axes + 1, rank - 1, numbers);
    }
    strcat(text, "]");
    return numbers;
}

/* Adds a field of any shape to both bodies. With `lens` its first axis are the rows of
 * all sequences, so many of each, and the text has a list for each sequence. */
static void add_field(struct sample *s, const char *name, const char *dtype,
                      const size_t *axes, size_t rank, const size_t *lens,
                      const double *numbers) {
    int64_t integers[MAX_NUMBERS];
    float floats[MAX_NUMBERS];
    unsigned char bytes[MAX_NUMBERS];
    bool booleans = strcmp(dtype, "BOOL") == 0;
    char shape[64] = "[";
    size_t count = 1;

    for (size_t i = 0; i < rank; i++) {
        sprintf(shape + strlen(shape), "%s%zu", i > 0 ? "," : "", axes[i]);
        count *= axes[i];
    }
    assert_true(count <= MAX_NUMBERS);
    for (size_t i = 0; i < count; i++) {
        floats[i] = (float)numbers[i];
        integers[i] = (int64_t)numbers[i];
        bytes[i] = numbers[i] != 0;
    }
    strcat(shape, "]");
    if (strcmp(dtype, "I64") == 0)
        file_add(&s->file, name, dtype, shape, integers, count * sizeof *integers);
    else if (booleans)
        file_add(&s->file, name, dtype, shape, bytes, count);
    else
        file_add(&s->file, name, dtype, shape, floats, count * sizeof *floats);

    sprintf(s->text + strlen(s->text), ",\"%s\":%s", name, lens != NULL ? "[" : "");
    for (size_t b = 0; lens != NULL && b < s->sequences; b++) {
        size_t own[MAX_RANK] = {lens[b]};
        memcpy(own + 1, axes + 1, (rank - 1) * sizeof *axes);
        strcat(s->text, b > 0 ? "," : "");
        numbers = add_lists(s->text, booleans, own, rank, numbers);
    }
    if (lens == NULL)
        add_lists(s->text, booleans, axes, rank, numbers);
    strcat(s->text, lens != NULL ? "]" : "");
}

/* Adds a field that has numbers of the shape [a], or [a, b], for each row. */
static void add_rows(struct sample *s, const char *name, const char *dtype,
                     const size_t *lens, size_t a, size_t b, const double *numbers) {
    const size_t even[] = {s->sequences, lens[0], a, b};
    size_t packed[] = {0, a, b}, rank = b > 0 ? 3 : 2;

    for (size_t i = 0; i < s->sequences; i++)
        packed[0] += lens[i];
    if (s->layout == EVEN)
        add_field(s, name, dtype, even, rank + 1, NULL, numbers);
    else
        add_field(s, name, dtype, packed, rank, s->layout == RAGGED ? lens : NULL,
                  numbers);
}

static void add_tensor(struct sample *s, const char *name, const size_t *lens,
                       size_t heads, size_t size) {
    double numbers[MAX_NUMBERS];
    for (size_t i = 0; i < MAX_NUMBERS; i++)
        numbers[i] = (double)draw(s, 0, 64) / 8 - 4;
    add_rows(s, name, "F32", lens, heads, size, numbers);
}

static void add_number(struct sample *s, const char *name, size_t number) {
    sprintf(s->text + strlen(s->text), ",\"%s\":%zu", name, number);
    sprintf(s->metadata + strlen(s->metadata), ",\"%s\":\"%zu\"", name, number);
}

/* Adds a word of need, of which a wrong request may have none. */
static void add_word(struct sample *s, const char *word) {
    if (is_wrong(s))
        return;
    strcat(s->need, s->need[0] != '\0' ? "," : "");
    strcat(s->need, word);
}

/* --- options --- */

static void draw_range(struct sample *s, size_t keys, double ret_range[2]) {
    size_t first = draw(s, 0, keys - 1), end = draw(s, first + 1, keys);
    ret_range[0] = (double)first;
    ret_range[1] = (double)end;
    if (is_wrong(s))
        ret_range[draw(s, 0, 1)] = (double)draw(s, 0, keys + 2) - 1;
}

static void add_spans(struct sample *s) {
    bool each = s->layout != ALONE && toss(s);
    size_t count = draw(s, 1, 12), lists = each ? s->sequences : 1;
    double ranges[MAX_NUMBERS];

    if (each && is_wrong(s))
        lists = draw(s, 1, MAX_SEQUENCES);
    for (size_t i = 0; i < lists * count; i++) {
        size_t b = i / count;
        draw_range(s, each && b < s->sequences ? s->keys[b] : s->fewest_keys,
                   ranges + 2 * i);
    }
    add_field(s, "spans", "I64", (size_t[]){each ? lists : count, each ? count : 2, 2},
              each ? 3 : 2, NULL, ranges);
    add_word(s, "spans");
}

static void add_top(struct sample *s) {
    size_t ranges = draw(s, 0, 3), least = s->fewest_keys;
    double in[6];

    for (size_t i = 0; i < ranges; i++) {
        draw_range(s, s->fewest_keys, in + 2 * i);
        if (in[2 * i + 1] - in[2 * i] < (double)least)
            least = in[2 * i + 1] > in[2 * i] ? (size_t)(in[2 * i + 1] - in[2 * i]) : 1;
    }
    if (ranges == 1)
        add_field(s, "top_in", "I64", (size_t[]){2}, 1, NULL, in);
    else if (ranges > 1)
        add_field(s, "top_in", "I64", (size_t[]){ranges, 2}, 2, NULL, in);
    add_number(s, "top_k", is_wrong(s) ? draw(s, 0, least + 1) : draw(s, 1, least));
    add_word(s, "top");
}

static void add_targets(struct sample *s) {
    bool one = s->layout == EVEN && toss(s);
    size_t sequences = one ? 1 : s->sequences;
    double ranges[MAX_NUMBERS] = {0}, *range = ranges;

    for (size_t b = 0; b < sequences; b++) {
        for (size_t q = 0; q < s->queries[b]; q++, range += 2) {
            if (toss(s))
                draw_range(s, one ? s->fewest_keys : s->keys[b], range);
        }
    }
    if (one)
        add_field(s, "targets", "I64", (size_t[]){s->queries[0], 2}, 2, NULL, ranges);
    else
        add_rows(s, "targets", "I64", s->queries, 2, 0, ranges);
    add_word(s, "target");
}

/* Selects some of `count` heads or rows, a few counted from the end when `from_end`.
 * Wrong ones may appear twice, or be out of range. */
static void add_selection(struct sample *s, const char *name, size_t count,
                          bool from_end) {
    size_t first = draw(s, 0, count - 1), num = draw(s, 1, count - first);
    double indices[MAX_NUMBERS];

    for (size_t i = 0; i < num; i++) {
        indices[i] = (double)(first + i);
        if (from_end && s->layout != RAGGED && toss(s))
            indices[i] -= (double)count;
        if (is_wrong(s))
            indices[i] = (double)draw(s, 0, 2 * count + 1) - (double)count;
    }
    add_field(s, name, "I64", &num, 1, NULL, indices);
}

/* What is added to the scores: as many of their last axes as it happens, each whole or
 * 1. Where these are many, those of sequences and heads are 1. */
static void add_mask(struct sample *s) {
    size_t axes[] = {s->sequences, s->heads, s->queries[0], s->keys[0]};
    size_t first = draw(s, 0, 3), count = axes[0] * axes[1] * axes[2] * axes[3];
    bool mask = toss(s), booleans = mask && toss(s);
    double numbers[MAX_NUMBERS];

    for (size_t i = 0; i < 3; i++)
        axes[i] = toss(s) || (i < 2 && count > MAX_NUMBERS / 2) ? 1 : axes[i];
    if (is_wrong(s))
        axes[draw(s, first, 3)]++;
    for (size_t i = 0; i < MAX_NUMBERS; i++)
        numbers[i] = (double)draw(s, 0, 9) - (booleans ? 4 : 4.25);
    for (size_t i = 0; booleans && i < MAX_NUMBERS; i++)
        numbers[i] = numbers[i] > 0;
    add_field(s, mask ? "attn_mask" : "bias", booleans ? "BOOL" : "F32", axes + first,
              4 - first, NULL, numbers);
}

static void add_options(struct sample *s) {
    static const char *const words[] = {"weights", "lse", "scores", "received",
                                        "entropy"};
    if (toss(s))
        add_spans(s);
    if (toss(s))
        add_top(s);
    if (toss(s))
        add_targets(s);
    if (toss(s)) {
        add_number(s, "block", is_wrong(s) ? 0 : draw(s, 1, 9));
        add_word(s, "blocks");
    }
    if (toss(s))
        add_number(s, "window", draw(s, 1, 9));
    if (s->layout != RAGGED && toss(s))
        add_mask(s);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (toss(s) || (s->need[0] == '\0' && i == 4))
            add_word(s, words[i]);
    }
    if (strcmp(s->need, "lse") == 0) /* has all heads and rows */
        return;
    if (toss(s))
        add_selection(s, "weights_heads", s->heads, false);
    if (toss(s))
        add_selection(s, "weights_queries", s->fewest_queries, true);
}

static void make_sample(struct sample *s) {
    size_t group = draw(s, 1, 3), kv_heads = draw(s, 1, 2), size = draw(s, 1, 5);
    double lens[2 * MAX_SEQUENCES];

    s->layout = (enum layout)draw(s, ALONE, RAGGED);
    s->sequences = s->layout == ALONE ? 1 : draw(s, 1, MAX_SEQUENCES);
    s->wrong = draw(s, 0, 2) == 0;
    s->heads = group * kv_heads;
    s->fewest_keys = s->fewest_queries = SIZE_MAX;
    s->text[0] = s->metadata[0] = s->need[0] = '\0';
    s->file.header_size = s->file.data_size = 0;
    for (size_t b = 0; b < s->sequences; b++) {
        bool own = b == 0 || s->layout == RAGGED;
        s->queries[b] = own ? draw(s, 1, 5) : s->queries[0];
        s->keys[b] = own ? draw(s, 1, 9) : s->keys[0];
        lens[b] = (double)s->queries[b];
        lens[MAX_SEQUENCES + b] = (double)s->keys[b];
        if (s->queries[b] < s->fewest_queries)
            s->fewest_queries = s->queries[b];
        if (s->keys[b] < s->fewest_keys)
            s->fewest_keys = s->keys[b];
    }

    add_options(s);
    add_tensor(s, "queries", s->queries, s->heads, size);
    add_tensor(s, "keys", s->keys, kv_heads, size);
    if (s->layout == RAGGED) { /* the text has them in its lists */
        size_t before = strlen(s->text);
        add_field(s, "query_lens", "I64", &s->sequences, 1, NULL, lens);
        add_field(s, "key_lens", "I64", &s->sequences, 1, NULL, lens + MAX_SEQUENCES);
        s->text[before] = '\0';
    }
}

/* --- properties --- */

/* wire_input.reserve: adds up what is asked for. */
static bool add_bytes(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)ret_problem;
    *(size_t *)context += bytes;
    return true;
}

/* Reads a body in no more memory than is reserved. */
static bool read_body(struct fixture *fixture, wire_read *read, const void *body,
                      size_t size) {
    size_t reserved = 0;
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .arena = &fixture->arena,
                                     .reserve = add_bytes,
                                     .context = &reserved};
    arena_reset(&fixture->arena);
    bool done = read(&input, &fixture->request, &fixture->problem);
    assert_true(fixture->arena.used <= reserved);
    return done;
}

/* Plans and runs what was read. Returns its results, which the caller frees. */
static float *run(const struct fixture *fixture, size_t *ret_bytes) {
    const attn_model *model = fixture->request.model;
    const attn_request *batch = &fixture->request.batch;
    attn_sizes sizes;
    attn_error error = {0};
    if (attn_plan(model, batch, &sizes, &error) != ATTN_OK)
        fail_msg("%s", error.text);

    const size_t counts[] = {2 * sizes.top,        sizes.weights,      sizes.lse,
                             sizes.scores,         sizes.span_weights, sizes.top,
                             sizes.target_weights, sizes.received,     sizes.entropy,
                             sizes.block_weights};
    float *to[11] = {NULL};
    size_t count = 0;
    for (size_t i = 0; i < 10; i++)
        count += counts[i];
    to[0] = malloc((count + 1) * sizeof(float));
    void *scratch = aligned_alloc(ATTN_ALIGNMENT, sizes.scratch_bytes);
    assert_true(to[0] != NULL && scratch != NULL);
    memset(to[0], 0xff, count * sizeof(float)); /* NaN */
    for (size_t i = 0; i < 10; i++)
        to[i + 1] = to[i] + counts[i];
    const attn_result result = {.top_keys = (int64_t *)(void *)to[0],
                                .weights = to[1],
                                .lse = to[2],
                                .scores = to[3],
                                .span_weights = to[4],
                                .top_weights = to[5],
                                .target_weights = to[6],
                                .received = to[7],
                                .entropy = to[8],
                                .block_weights = to[9]};
    attn_run(model, batch, &sizes, scratch, &result);
    for (size_t i = 2 * sizes.top; i < count; i++)
        assert_false(isnan(to[0][i]));
    for (size_t i = 0; i < sizes.top; i++)
        assert_true(result.top_keys[i] >= -1 && result.top_keys[i] < 9);
    free(scratch);
    *ret_bytes = count * sizeof(float);
    return to[0];
}

/* Returns whether both bodies are accepted. */
static bool compare_bodies(struct fixture *fixture, const struct sample *s,
                           const char *text, const void *file, size_t file_size) {
    float *of_text = NULL;
    size_t text_bytes = 0, bytes;
    bool accepted = read_body(fixture, wire_native_read, text, strlen(text));
    const struct wire_problem problem = fixture->problem;
    if (accepted)
        of_text = run(fixture, &text_bytes);

    if (read_body(fixture, wire_safetensors_read, file, file_size) != accepted)
        fail_msg("%s\n%s: %s", text, accepted ? "safetensors" : "JSON",
                 (accepted ? &fixture->problem : &problem)->detail);
    if (accepted) {
        float *of_file = run(fixture, &bytes);
        assert_int_equal(bytes, text_bytes);
        assert_memory_equal(of_file, of_text, bytes);
        free(of_file);
    } else if (!s->wrong || problem.status != 400 || fixture->problem.status != 400 ||
               strcmp(problem.field, fixture->problem.field) != 0) {
        fail_msg("%s\nJSON: %s\nsafetensors: %s", text, problem.detail,
                 fixture->problem.detail);
    }
    free(of_text);
    return accepted;
}

static void test_bodies_of_a_request_are_read_alike(void **state) {
    static struct sample s;
    static char text[sizeof s.text + 256];
    size_t num_accepted = 0, file_size;

    s.seed = unit_seed(20261501);
    for (size_t i = 0; i < NUM_REQUESTS; i++) {
        char metadata[sizeof s.metadata + 256], *out = text;
        make_sample(&s);
        snprintf(metadata, sizeof metadata, "\"__metadata__\":{\"need\":\"%s\"%s}",
                 s.need, s.metadata);
        file_add_text(&s.file, metadata);
        unsigned char *file = file_make(&s.file, &file_size);

        out += sprintf(out, "{\"need\":[\"");
        for (const char *c = s.need; *c != '\0'; c++)
            out += sprintf(out, *c == ',' ? "\",\"" : "%c", *c);
        sprintf(out, "\"]%s}", s.text);
        num_accepted += compare_bodies(*state, &s, text, file, file_size);
        free(file);
    }
    print_message("%zu of %d requests were accepted\n", num_accepted, NUM_REQUESTS);
    assert_true(num_accepted > NUM_REQUESTS / 2 && num_accepted < NUM_REQUESTS * 9 / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_of_a_request_are_read_alike),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
