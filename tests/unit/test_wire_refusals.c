/* SPDX-License-Identifier: Apache-2.0 */
/* Every body of tests/data/invalid/native.jsonl gives the problem that its line has. */
#include "wire_fixture.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define CORPUS    TEST_DATA "/invalid/native.jsonl"
#define CASES_MIN 200 /* so that a missing corpus is noticed */

/* Returns the body of a case: each character is one byte. The caller frees it. It is as
 * large as the body, so that a read past its end is found. */
static char *make_body(const json_t *defect, size_t *ret_size) {
    const json_t *text = json_object_get(defect, "body");
    const json_t *repeat = json_object_get(defect, "repeat_last");
    const char *utf8 = json_string_value(text);
    assert_non_null(utf8);
    size_t length = json_string_length(text), size = 0;
    size_t repeats = repeat != NULL ? (size_t)json_integer_value(repeat) : 1;

    char *bytes = malloc(length + repeats);
    for (size_t i = 0; i < length; i++) {
        unsigned character = (unsigned char)utf8[i];
        if (character >= 0x80)
            character = (character & 3) << 6 | ((unsigned char)utf8[++i] & 0x3f);
        bytes[size++] = (char)character;
    }
    for (size_t i = 1; i < repeats; i++, size++)
        bytes[size] = bytes[size - 1];
    *ret_size = size;
    return realloc(bytes, size > 0 ? size : 1);
}

/* Chooses the models that a case names, in its order; all when it names none. */
static size_t choose_models(const struct fixture *fixture, const json_t *expected,
                            const attn_model **ret_models) {
    const json_t *names = json_object_get(expected, "models");
    size_t count = names == NULL ? NUM_MODELS : json_array_size(names);
    for (size_t i = 0; i < count; i++) {
        ret_models[i] = names == NULL ? fixture->models[i] : NULL;
        for (size_t k = 0; names != NULL && k < NUM_MODELS; k++) {
            const char *name = json_string_value(json_array_get(names, i));
            if (strcmp(attn_model_get_info(fixture->models[k])->name, name) == 0)
                ret_models[i] = fixture->models[k];
        }
        assert_non_null(ret_models[i]);
    }
    return count;
}

static json_t *print_problem(const struct wire_problem *problem) {
    struct buf body;
    buf_init(&body, 1 << 16);
    wire_problem_print(problem, &body);
    assert_int_equal(body.status, ATTN_OK);
    json_t *root = json_loadb(body.data, body.size, 0, NULL);
    if (root == NULL)
        fail_msg("not JSON: %.*s", (int)body.size, body.data);
    buf_deinit(&body);
    return root;
}

/* Returns how many members differ, and prints both problems if any does. */
static int compare_problems(const char *name, const json_t *expected, const json_t *got) {
    static const char *const members[] = {"status", "title", "field", "expected", "got"};
    int differences = 0;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const json_t *left = json_object_get(expected, members[i]);
        const json_t *right = json_object_get(got, members[i]);
        differences += left == NULL ? right != NULL : !json_equal(left, right);
    }

    const char *text = json_string_value(json_object_get(expected, "detail_contains"));
    const char *detail = json_string_value(json_object_get(got, "detail"));
    differences += text == NULL || detail == NULL || strstr(detail, text) == NULL;

    if (differences > 0) {
        char *left = json_dumps(expected, 0), *right = json_dumps(got, 0);
        print_error("%s: expected %s\n%s: got      %s\n", name, left, name, right);
        free(left);
        free(right);
    }
    return differences;
}

static int run_case(struct fixture *fixture, const json_t *expected) {
    size_t size, reserved;
    const char *name = json_string_value(json_object_get(expected, "name"));
    const attn_model *models[NUM_MODELS];
    size_t count = choose_models(fixture, expected, models);
    char *body = make_body(expected, &size);

    /* Decoded. */
    struct wire_request untouched;
    memset(&untouched, 0xA5, sizeof untouched);
    memcpy(&fixture->request, &untouched, sizeof untouched);
    arena_reset(&fixture->arena);
    bool decoded =
        fixture_read(fixture, models, count, &fixture->arena, body, size, &reserved);
    free(body);

    int differences = 1;
    if (decoded) {
        print_error("%s: was accepted\n", name);
    } else {
        assert_memory_equal(&fixture->request, &untouched, sizeof untouched);
        json_t *got = print_problem(&fixture->problem);
        differences = compare_problems(name, expected, got);
        json_decref(got);
    }
    return differences;
}

static void test_every_defect_gives_its_problem(void **state) {
    FILE *corpus = fopen(CORPUS, "rb");
    if (corpus == NULL)
        fail_msg("cannot open " CORPUS);
    int cases = 0, wrong = 0;
    char *line = NULL;
    size_t capacity = 0;

    for (ssize_t size; (size = getline(&line, &capacity, corpus)) > 0; cases++) {
        json_t *defect =
            json_loadb(line, (size_t)size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        if (defect == NULL)
            fail_msg("line %d is not JSON", cases + 1);
        wrong += run_case(*state, defect) > 0;
        json_decref(defect);
    }

    free(line);
    fclose(corpus);
    print_message("%d cases\n", cases);
    assert_int_equal(wrong, 0);
    assert_true(cases >= CASES_MIN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_defect_gives_its_problem),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
