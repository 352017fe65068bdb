/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_json.c: jansson reads while its allocations fail. */
#include "fail_alloc.h"
#include "safetensors/parse.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int wire_json_setup(void **state) {
    (void)state;
    parse_json_init();
    return 0;
}

/* Parses `text`, of which the first, second, ... allocation fails until none does. */
static void check_each_failure(const char *text) {
    for (size_t nth = 1;; nth++) {
        json_t *value = NULL;
        json_error_t error;
        fail_alloc_at(nth);
        attn_status status =
            parse_json(text, strlen(text), JSON_DECODE_ANY, &value, &error);
        bool failed = fail_alloc_stop();
        assert_int_equal(status, failed ? ATTN_E_NOMEM : ATTN_OK);
        json_decref(value);
        if (!failed) {
            assert_true(nth > 1);
            return;
        }
    }
}

/* jansson stores a token in a buffer that grows from 16 bytes on. It loses the character
 * for which the buffer could not grow. */
static void test_text_of_any_size_survives_every_failing_allocation(void **state) {
    (void)state;
    for (int size = 0; size <= 140; size++) {
        char text[200];
        snprintf(
            text, sizeof text, "\"%.*s\"", size,
            "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrst"
            "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrst");
        check_each_failure(text);
        for (int escape = 0; escape < size; escape++) {
            text[1 + escape] = '\\';
            text[2 + escape] = escape + 1 < size ? 'n' : '"';
            text[3 + escape] = escape + 1 < size ? text[3 + escape] : '\0';
            if (escape + 1 < size)
                check_each_failure(text);
            text[1 + escape] = text[2 + escape] = 'x';
        }
    }
}

static void test_number_of_any_size_survives_every_failing_allocation(void **state) {
    (void)state;
    for (int size = 1; size <= 70; size++) {
        static const char *const ends[] = {"", ".5", "e1", "e+1", "E-12", ".5e-1"};
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
            static const char ones[] =
                "1111111111111111111111111111111111111111111111111111111111111111111111";
            char text[100];
            snprintf(text, sizeof text, "%.*s%s", size, ones, ends[i]);
            if (size < 19 || i > 0)
                check_each_failure(text);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_of_any_size_survives_every_failing_allocation),
        cmocka_unit_test(test_number_of_any_size_survives_every_failing_allocation),
    };
    return cmocka_run_group_tests_name("wire_json", tests, wire_json_setup, NULL);
}
