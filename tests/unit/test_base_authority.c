/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_authority.c: HOST and HOST:PORT, as options, headers and URLs have them. */
#include "base/authority.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

static void test_host_and_port_are_split(void **state) {
    static const struct {
        const char *text, *host;
        bool brackets, has_port;
        unsigned port;
    } cases[] = {
        {"a", "a", false, false, 0},       {"a:80", "a", false, true, 80},
        {"a:00080", "a", false, true, 80}, {"a:65535", "a", false, true, 65535},
        {"[::1]", "::1", true, false, 0},  {"[::1]:0", "::1", true, true, 0},
        {"a]", "a]", false, false, 0},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct authority parts = {0};
        assert_true(authority_split(cases[i].text, strlen(cases[i].text), &parts));
        assert_int_equal(parts.host_size, strlen(cases[i].host));
        assert_memory_equal(parts.host, cases[i].host, parts.host_size);
        assert_int_equal(parts.brackets, cases[i].brackets);
        assert_int_equal(parts.has_port, cases[i].has_port);
        assert_int_equal(parts.port, cases[i].port);
    }
}

static void test_port_of_more_than_16_bits_or_5_digits_is_out_of_range(void **state) {
    static const char *const texts[] = {"a:65536", "a:000080", "a:99999999999999999999"};
    (void)state;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct authority parts = {0};
        assert_true(authority_split(texts[i], strlen(texts[i]), &parts));
        assert_true(parts.port > AUTHORITY_PORT_MAX);
    }
}

static void test_malformed_texts_are_refused(void **state) {
    static const char *const texts[] = {"",      ":80",   "a:",     "a:b",      "a:80b",
                                        "::1",   "[]",    "[]:80",  "[::1",     "[::1]80",
                                        "[a]b:", "a:b:1", "[a]]:1", "[::1]:-1", "a: 1"};
    (void)state;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct authority parts = {0};
        assert_false(authority_split(texts[i], strlen(texts[i]), &parts));
    }
}

static void test_text_ends_at_its_size(void **state) {
    struct authority parts = {0};
    (void)state;

    assert_true(authority_split("a:80/path", 4, &parts));
    assert_int_equal(parts.port, 80);
    assert_true(authority_split("a:80", 1, &parts));
    assert_false(parts.has_port);
    assert_false(authority_split("a:80", 2, &parts));
    assert_false(authority_split("[a]", 2, &parts));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_and_port_are_split),
        cmocka_unit_test(test_port_of_more_than_16_bits_or_5_digits_is_out_of_range),
        cmocka_unit_test(test_malformed_texts_are_refused),
        cmocka_unit_test(test_text_ends_at_its_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
