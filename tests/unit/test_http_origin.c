/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_origin.c: tests of origins: which are read, which are the same, and which are
 * the server's own. */
#include "fail_alloc.h"
#include "http/net/address.h"
#include "http/net/origin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define NUM(array) (sizeof(array) / sizeof *(array))

static bool is_allowed(const char *origin, const char *allowed) {
    char *text = strdup(allowed);
    struct origins origins;
    attn_error error;

    assert_non_null(text);
    assert_int_equal(origins_read(&text, 1, &origins, &error), ATTN_OK);
    bool found = origin_is_in(origin, &origins);
    free(origins.items);
    free(text);
    return found;
}

static bool is_own(const char *origin, const char *host, bool over_loopback) {
    return origin_is_own(origin, host, strlen(host), over_loopback);
}

static void test_an_origin_is_allowed_whatever_its_case_and_default_port(void **state) {
    static const char *const same[][2] = {
        {"https://example.org", "https://example.org"},
        {"https://example.org", "HTTPS://Example.ORG:443"},
        {"http://example.org:80", "http://example.org"},
        {"http://localhost:3000", "http://localhost:3000"},
        {"http://localhost:3000", "http://localhost:03000"},
        {"http://[::1]:8080", "http://[::1]:8080"},
        {"http://[2001:DB8::1]", "http://[2001:db8::1]:80"},
        {"chrome-extension://abcdef", "chrome-extension://abcdef"},
    };
    (void)state;
    for (size_t i = 0; i < NUM(same); i++)
        assert_true(is_allowed(same[i][0], same[i][1]));
}

static void test_another_scheme_host_or_port_is_not_allowed(void **state) {
    static const char *const origins[] = {
        "http://example.org",
        "https://example.org:80",
        "https://example.org:8443",
        "https://www.example.org",
        "https://example.or",
        "https://example.org.",
        "https://example.org.evil.io",
        "https://evil.io",
        "https://xexample.org",
        "httpsx://example.org:443",
        "null",
        "",
    };
    (void)state;
    for (size_t i = 0; i < NUM(origins); i++)
        assert_false(is_allowed(origins[i], "https://example.org"));
    assert_false(is_allowed("moz-extension://abcdef:80", "moz-extension://abcdef"));
}

static const char *const malformed[] = {
    "",
    "example.org",
    "//example.org",
    "://example.org",
    "1http://example.org",
    "ht_tp://example.org",
    "https:/example.org",
    "https://",
    "https://:443",
    "https://example.org/",
    "https://example.org/path",
    "https://example.org?x",
    "https://user@example.org",
    "https://example.org:",
    "https://example.org:0",
    "https://example.org:65536",
    "https://example.org:655360",
    "https://example.org:4x3",
    "https://example.org:443:443",
    "https://example.org https://example.net",
    "https://exa mple.org",
    "http://::1",
    "http://[]",
    "http://[::1",
    "http://[::1]8080",
    "http://[::x]",
    "http://[localhost]",
};

static void test_malformed_origins_are_refused_with_their_text(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM(malformed); i++) {
        char text[64];
        struct origins origins;
        attn_error error;

        strcpy(text, malformed[i]);
        assert_int_equal(origins_read(&(char *){text}, 1, &origins, &error),
                         ATTN_E_VALUE);
        assert_non_null(strstr(error.text, "--cors-origin"));
        assert_non_null(strstr(error.text, text));
        assert_non_null(strstr(error.text, "is not an origin"));
    }
}

static void test_malformed_origins_are_nobodys(void **state) {
    const struct origins none = {NULL, 0};
    (void)state;
    for (size_t i = 0; i < NUM(malformed); i++) {
        const char *host = strstr(malformed[i], "//");
        assert_false(origin_is_in(malformed[i], &none));
        assert_false(is_own(malformed[i], host != NULL ? host + 2 : malformed[i], false));
    }
}

static void test_origins_that_any_page_can_have_are_refused(void **state) {
    static const char *const texts[] = {"*", "null", "NULL"};
    (void)state;
    for (size_t i = 0; i < NUM(texts); i++) {
        char text[8];
        struct origins origins;
        attn_error error;

        strcpy(text, texts[i]);
        assert_int_equal(origins_read(&(char *){text}, 1, &origins, &error),
                         ATTN_E_VALUE);
        assert_non_null(strstr(error.text, "every web page"));
    }
}

static void test_every_origin_is_read_or_none(void **state) {
    char *texts[] = {(char[]){"https://a.example"}, (char[]){"http://b.example:81"},
                     (char[]){"nothing"}};
    struct origins origins = {NULL, 0};
    attn_error error;
    (void)state;

    assert_int_equal(origins_read(texts, 3, &origins, &error), ATTN_E_VALUE);
    assert_null(origins.items);
    fail_alloc_at(1);
    attn_status status = origins_read(texts, 2, &origins, &error);
    assert_true(fail_alloc_stop());
    assert_int_equal(status, ATTN_E_NOMEM);

    assert_int_equal(origins_read(texts, 2, &origins, &error), ATTN_OK);
    assert_true(origin_is_in("https://a.example", &origins));
    assert_true(origin_is_in("http://b.example:81", &origins));
    assert_false(origin_is_in("https://b.example", &origins));
    free(origins.items);
    assert_int_equal(origins_read(NULL, 0, &origins, &error), ATTN_OK);
    assert_false(origin_is_in("https://a.example", &origins));
    free(origins.items);
}

static void test_own_origin_is_the_host_of_the_request(void **state) {
    static const char *const own[][2] = {
        {"http://127.0.0.1:8080", "127.0.0.1:8080"}, {"http://10.0.0.1", "10.0.0.1"},
        {"http://10.0.0.1", "10.0.0.1:80"},          {"https://10.0.0.1", "10.0.0.1"},
        {"https://10.0.0.1", "10.0.0.1:443"},        {"http://[::1]:8080", "[::1]:8080"},
        {"http://localhost:8080", "localhost:8080"}, {"HTTP://LOCALHOST", "localhost:80"},
        {"http://[fd00::A]", "[fd00::a]"},
    };
    static const char *const foreign[][2] = {
        {"http://127.0.0.1:8080", "127.0.0.1:8081"},
        {"http://127.0.0.1:8080", "localhost:8080"},
        {"http://127.0.0.1:8080", "127.0.0.1"},
        {"https://10.0.0.1", "10.0.0.1:80"},
        {"http://10.0.0.1", "10.0.0.1:443"},
        {"http://localhost", "localhost."},
        {"http://localhost", "localhost evil"},
        {"http://[::1]", "::1"},
        {"http://[::1]", "[::1"},
        {"http://10.0.0.1", ""},
        {"http://10.0.0.1", "10.0.0.1:"},
        {"http://10.0.0.1", "10.0.0.1:80:80"},
        {"http://10.0.0.1", "user@10.0.0.1"},
        {"ftp://10.0.0.1", "10.0.0.1"},
        {"null", "null"},
        {"null", ""},
    };
    (void)state;

    for (size_t i = 0; i < NUM(own); i++)
        assert_true(is_own(own[i][0], own[i][1], true) &&
                    is_own(own[i][0], own[i][1], false));
    for (size_t i = 0; i < NUM(foreign); i++)
        assert_false(is_own(foreign[i][0], foreign[i][1], true) ||
                     is_own(foreign[i][0], foreign[i][1], false));
}

static void test_own_name_does_not_count_over_loopback(void **state) {
    static const char *const names[] = {"rebound.example", "localhost.", "x.localhost",
                                        "127.0.0.1.",      "127.1",      "localhost.evil",
                                        "127.0.0.1.evil",  "2130706433"};
    (void)state;
    for (size_t i = 0; i < NUM(names); i++) {
        char origin[64] = "http://";
        strcat(origin, names[i]);
        assert_false(is_own(origin, names[i], true));
        assert_true(is_own(origin, names[i], false));
    }
}

static void test_host_ends_where_its_size_says(void **state) {
    (void)state;
    assert_true(origin_is_own("http://10.0.0.1:81", "10.0.0.1:81/v2", 11, true));
    assert_true(origin_is_own("http://[::1]", "[::1]/", 5, true));
    assert_false(origin_is_own("http://10.0.0.1:81", "10.0.0.1:812", 12, true));
    assert_false(origin_is_own("http://10.0.0.1", "10.0.0.1:81", 9, true));
    assert_false(origin_is_own("http://[::1]", "[::1]", 4, true));
}

static void test_loopback_is_what_only_the_machine_has(void **state) {
    static const struct {
        const char *text;
        bool loopback;
    } cases[] = {{"127.0.0.1", true},
                 {"127.255.0.9", true},
                 {"::1", true},
                 {"::ffff:7f00:1", true},
                 {"128.0.0.1", false},
                 {"10.0.0.1", false},
                 {"0.0.0.0", false},
                 {"::", false},
                 {"::2", false},
                 {"fe80::1", false},
                 {"::ffff:10.0.0.1", false},
                 {"::127.0.0.1", false}};
    (void)state;

    for (size_t i = 0; i < NUM(cases); i++) {
        struct address address;
        assert_true(address_read(cases[i].text, strlen(cases[i].text), &address));
        assert_int_equal(address_is_loopback(&address), cases[i].loopback);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_origin_is_allowed_whatever_its_case_and_default_port),
        cmocka_unit_test(test_another_scheme_host_or_port_is_not_allowed),
        cmocka_unit_test(test_malformed_origins_are_refused_with_their_text),
        cmocka_unit_test(test_malformed_origins_are_nobodys),
        cmocka_unit_test(test_origins_that_any_page_can_have_are_refused),
        cmocka_unit_test(test_every_origin_is_read_or_none),
        cmocka_unit_test(test_own_origin_is_the_host_of_the_request),
        cmocka_unit_test(test_own_name_does_not_count_over_loopback),
        cmocka_unit_test(test_host_ends_where_its_size_says),
        cmocka_unit_test(test_loopback_is_what_only_the_machine_has),
    };
    return cmocka_run_group_tests_name("http_origin", tests, NULL, NULL);
}
