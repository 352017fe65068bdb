/* SPDX-License-Identifier: Apache-2.0 */
/* Every body of tests/data/invalid/native gives the problem that is stored beside it. */
#include "wire_fixture.h"

#include <dirent.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define CORPUS    TEST_DATA "/invalid/native"
#define CASES_MIN 100 /* so that a missing corpus is noticed */

static char *read_case_file(const char *folder, const char *name, size_t *ret_size) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s/%s", CORPUS, folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("cannot open %s", path);
    char *data = malloc(1 << 20);
    *ret_size = fread(data, 1, 1 << 20, file);
    fclose(file);
    return data;
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
static int compare_problems(const char *folder, const json_t *expected,
                            const json_t *got) {
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
        print_error("%s: expected %s\n%s: got      %s\n", folder, left, folder, right);
        free(left);
        free(right);
    }
    return differences;
}

static int run_case(struct fixture *fixture, const char *folder) {
    size_t size;
    size_t reserved;

    /* The case. */
    char *text = read_case_file(folder, "problem.json", &size);
    json_t *expected = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (expected == NULL)
        fail_msg("%s/problem.json is not JSON", folder);
    const attn_model *models[NUM_MODELS];
    size_t count = choose_models(fixture, expected, models);
    text = read_case_file(folder, "body.json", &size);
    char *body = malloc(size > 0 ? size : 1); /* so that a read past its end is found */
    memcpy(body, text, size);
    free(text);

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
        print_error("%s: was accepted\n", folder);
    } else {
        assert_memory_equal(&fixture->request, &untouched, sizeof untouched);
        json_t *got = print_problem(&fixture->problem);
        differences = compare_problems(folder, expected, got);
        json_decref(got);
    }
    json_decref(expected);
    return differences;
}

static void test_every_defect_gives_its_problem(void **state) {
    DIR *corpus = opendir(CORPUS);
    if (corpus == NULL)
        fail_msg("cannot open " CORPUS);
    int cases = 0, wrong = 0;
    for (struct dirent *entry = readdir(corpus); entry != NULL; entry = readdir(corpus)) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "README.md") == 0)
            continue;
        wrong += run_case(*state, entry->d_name) > 0;
        cases++;
    }
    closedir(corpus);
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
