/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors are read as by the oracle, which makes jansson build a tree: random tensors,
 * and texts damaged at every position. */
#include "tensor_oracle.h"
#include "wire/json/tensor.h"
#include "wire_fixture.h"

#include "fail_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TENSORS   2000
#define MUTATIONS 200000
#define TEXT_MAX  8192

static int setup(void **state) {
    static struct arena arenas[2];
    parse_json_init();
    arena_init(&arenas[0], 1 << 20);
    arena_init(&arenas[1], 1 << 20);
    *state = arenas;
    return 0;
}

static int teardown(void **state) {
    struct arena *arenas = *state;
    arena_deinit(&arenas[0]);
    arena_deinit(&arenas[1]);
    return 0;
}

/* Reads with both readers. Returns whether they accept the text. */
static bool check_text(struct arena arenas[2], const char *text, size_t size) {
    bool accepted;
    const char *wrong = oracle_check(text, size, arenas, &accepted);
    if (wrong != NULL)
        fail_msg("%.*s: %s", (int)size, text, wrong);
    return accepted;
}

/* Writes white space, in most cases none. */
static char *put_space(char *out, uint64_t dice) {
    static const char *const spaces[] = {"",  "",           "",   "",
                                         " ", "\n        ", "\t", "\r\n  "};
    return stpcpy(out, spaces[dice % 8]);
}

static char *put_number(char *out, uint64_t dice) {
    float value = (float)(int32_t)dice * 0x1p-30F;
    static const int digits[] = {17, 9, 8, 3, 1};
    int shown = digits[(dice >> 32) % 5];
    switch ((dice >> 36) % 3) {
    case 0:
        return out + sprintf(out, "%.*f", shown, (double)value);
    case 1:
        return out + sprintf(out, "%.*e", shown, (double)value);
    default:
        return out + sprintf(out, "%.*g", shown, (double)value);
    }
}

/* Writes a random tensor. Returns the size of its text. */
static size_t put_tensor(char text[TEXT_MAX], uint64_t *random) {
    uint64_t dice = fixture_random(random);
    bool batched = dice & 1;
    size_t sequences = batched ? 1 + (dice >> 1) % 4 : 1, width = 1 + (dice >> 8) % 9;
    char *out = stpcpy(text, batched ? "[" : "");

    for (size_t b = 0; b < sequences; b++) {
        size_t rows = 1 + fixture_random(random) % 4;
        out = stpcpy(out, b > 0 ? ",[" : "[");
        for (size_t t = 0; t < rows; t++) {
            out = put_space(stpcpy(out, t > 0 ? ",[" : "["), fixture_random(random));
            for (size_t i = 0; i < width; i++) {
                dice = fixture_random(random);
                if (i > 0)
                    out = put_space(stpcpy(out, ","), dice >> 40);
                out = put_space(put_number(out, dice), dice >> 45);
            }
            out = put_space(stpcpy(out, "]"), dice >> 50);
        }
        out = stpcpy(out, "]");
    }
    return (size_t)(stpcpy(out, batched ? "]" : "") - text);
}

static void test_random_tensors_are_read_as_by_the_oracle(void **state) {
    uint64_t random = unit_seed(1);
    for (int i = 0; i < TENSORS; i++) {
        char text[TEXT_MAX];
        size_t size = put_tensor(text, &random);
        if (!check_text(*state, text, size))
            fail_msg("%.*s", (int)size, text);
    }
}

static void test_every_byte_at_every_position_is_read_as_by_the_oracle(void **state) {
    static const char tensor[] = "[[[1,-2.5e+3, 0.1234567890123],[4,5,6]],[[7,8,9]]]";
    size_t accepted = 0;
    for (size_t at = 0; at < sizeof tensor - 1; at++) {
        for (int byte = 0; byte < 256; byte++) {
            char text[sizeof tensor];
            memcpy(text, tensor, sizeof tensor);
            text[at] = (char)byte; /* replaced */
            accepted += check_text(*state, text, sizeof tensor - 1);
            memcpy(text + at + 1, tensor + at, sizeof tensor - 1 - at); /* inserted */
            accepted += check_text(*state, text, sizeof tensor);
        }
        check_text(*state, tensor, at); /* cut off */
    }
    assert_true(accepted > 100);
}

static void test_random_damage_is_read_as_by_the_oracle(void **state) {
    uint64_t random = unit_seed(2);
    size_t accepted = 0;
    for (int i = 0; i < MUTATIONS; i++) {
        char text[TEXT_MAX];
        size_t size = put_tensor(text, &random);
        for (int times = 0; times < 1 + i % 3; times++) {
            uint64_t dice = fixture_random(&random);
            size_t at = (dice >> 8) % size, length = 1 + (dice >> 40) % 5;
            if (dice % 4 == 0 && length < size - at) {
                memmove(text + at, text + at + length, size - at - length);
                size -= length;
            } else {
                text[at] = "0123456789-+.eE,,[]{}\" \n:nx"[(dice >> 48) % 27];
            }
        }
        accepted += check_text(*state, text, size);
    }
    print_message("%zu accepted\n", accepted);
    assert_true(accepted > MUTATIONS / 50);
    assert_true(accepted < MUTATIONS / 2);
}

static void test_first_error_is_reported_with_line_column_and_path(void **state) {
    struct arena *arenas = *state;
    static const struct {
        const char *text, *title, *detail;
    } cases[] = {
        {"[[[1,2],[3,4]],\n [[5,6],[7,x]]]", "Malformed JSON",
         "line 2, column 12: t[1][1][1]: a value expected near 'x'"},
        {"[[[1,2],[3,4]],\n [[5,6],[7,\"8\"]]]", "Wrong type",
         "line 2, column 12: t[1][1][1] is a string"},
        {"[[1,2],\n[3,4e38]]", "Out of range", "line 2, column 7: t[1][1] is 4e+38"},
        {"[[1,2],[3]]", "Uneven rows", "line 1, column 10: t[1] has 1 element, but"},
        {"[[1,2],\r\n\r\n[]]", "Empty tensor", "line 3, column 2: t[1] is an empty"},
        {"[[1,2],[3,4],[5 6]]", "Malformed JSON",
         "line 1, column 17: t[2][0]: ',' or ']' expected near '6'"},
        {"[[1,2],[3,[4]]]", "Wrong rank", "line 1, column 11: t[1][1]: t has 3 levels"},
        {"[[1,2],3]", "Wrong rank", "line 1, column 8: t[1]: t has 1 level"},
        {"[[1,x],[3]]", "Malformed JSON", "t[0][1]"}, /* before the uneven row */
        {"[[1,2],[3],[x]]", "Uneven rows", "t[1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_tensor tensor;
        struct wire_problem problem;
        arena_reset(&arenas[0]);
        assert_false(oracle_read_text(cases[i].text, strlen(cases[i].text), &arenas[0],
                                      &tensor, &problem));
        assert_string_equal(problem.title, cases[i].title);
        if (strstr(problem.detail, cases[i].detail) == NULL)
            fail_msg("%s: %s", cases[i].text, problem.detail);
    }
}

static void test_negative_zero_keeps_its_sign(void **state) {
    struct arena *arenas = *state;
    struct wire_tensor tensor;
    struct wire_problem problem;
    assert_true(oracle_read_text("[[-0,-0.0,0]]", 13, &arenas[0], &tensor, &problem));
    assert_true(__builtin_signbit(tensor.rows[0]) && __builtin_signbit(tensor.rows[1]) &&
                !__builtin_signbit(tensor.rows[2]));
}

static void test_failed_allocations_are_reported(void **state) {
    (void)state;
    for (size_t nth = 1; nth <= 2; nth++) {
        struct arena arena;
        struct wire_tensor tensor;
        struct wire_problem problem;
        static char text[200000];
        strcpy(text, "[["); /* too large for the arena's first chunk */
        for (size_t i = 2; i < sizeof text - 3; i += 2)
            memcpy(text + i, "1,", 2);
        strcpy(text + sizeof text - 4, "1]]");
        arena_init(&arena, 0);
        fail_alloc_at(nth);
        bool read = oracle_read_text(text, strlen(text), &arena, &tensor, &problem);
        assert_true(fail_alloc_stop());
        assert_false(read);
        assert_string_equal(problem.title, "Out of memory");
        arena_deinit(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_tensors_are_read_as_by_the_oracle),
        cmocka_unit_test(test_every_byte_at_every_position_is_read_as_by_the_oracle),
        cmocka_unit_test(test_random_damage_is_read_as_by_the_oracle),
        cmocka_unit_test(test_first_error_is_reported_with_line_column_and_path),
        cmocka_unit_test(test_negative_zero_keeps_its_sign),
        cmocka_unit_test(test_failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
