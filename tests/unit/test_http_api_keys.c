/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_api_keys.c: files of keys, and which texts are a key of them. */
#include "fail_alloc.h"
#include "http/net/api_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KEY_A "0123456789abcdef"
#define KEY_B "0123456789abcdeg"

static struct api_keys *parse(const char *text) {
    attn_error error;
    struct api_keys *keys = NULL;
    assert_int_equal(api_keys_parse(text, strlen(text), &keys, &error), ATTN_OK);
    return keys;
}

/* Returns the name of a key, or NULL. */
static const char *find(const struct api_keys *keys, const char *text) {
    static char name[API_KEY_NAME_MAX + 1];
    return api_keys_find(keys, text, strlen(text), name) ? name : NULL;
}

static void test_each_key_has_its_name(void **state) {
    struct api_keys *keys = parse("# staff\nalice:" KEY_A "\r\n\nbob:" KEY_B
                                  "\n#\nalice:a:key#of/other+characters==");
    (void)state;
    assert_int_equal(api_keys_count(keys), 3);
    assert_string_equal(find(keys, KEY_A), "alice");
    assert_string_equal(find(keys, KEY_B), "bob");
    assert_string_equal(find(keys, "a:key#of/other+characters=="), "alice");
    api_keys_destroy(keys);
}

static void test_only_a_whole_key_is_one(void **state) {
    char long_key[API_KEY_MAX + 2] = "", text[API_KEY_MAX + 8];
    struct api_keys *keys = parse("alice:" KEY_A);
    (void)state;

    assert_null(find(keys, ""));
    assert_null(find(keys, "0123456789abcde"));
    assert_null(find(keys, KEY_A "f"));
    assert_null(find(keys, "0123456789abcdeF"));
    assert_null(find(keys, "1123456789abcdef"));
    api_keys_destroy(keys);

    memset(long_key, 'k', API_KEY_MAX);
    snprintf(text, sizeof text, "long:%s", long_key);
    keys = parse(text);
    assert_string_equal(find(keys, long_key), "long");
    long_key[API_KEY_MAX] = 'k';
    assert_null(find(keys, long_key));
    api_keys_destroy(keys);
}

static void test_bad_files_are_refused_by_line(void **state) {
    char long_name[API_KEY_NAME_MAX + 40] = "", long_key[API_KEY_MAX + 4] = "b:";
    memset(long_name, 'n', API_KEY_NAME_MAX + 1);
    strcat(long_name, ":" KEY_A);
    memset(long_key + 2, 'k', API_KEY_MAX + 1);
    const struct {
        const char *text, *expected;
    } files[] = {
        {"", "has no key"},
        {"# nobody\n\n", "has no key"},
        {"alice:" KEY_A "\n" KEY_B, "line 2 is not NAME:KEY"},
        {":" KEY_A, "line 1 has a name"},
        {"al ice:" KEY_A, "line 1 has a name"},
        {long_name, "line 1 has a name"},
        {"#\nalice:0123456789abcde", "line 2 has a key"},
        {"alice:0123456789 abcdef", "line 1 has a key"},
        {"alice:" KEY_A "\t", "line 1 has a key"},
        {"alice:" KEY_A "\x80", "line 1 has a key"},
        {long_key, "line 1 has a key"},
        {"alice:" KEY_A "\nbob:" KEY_A, "line 2 has the key of an earlier line"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct api_keys *keys;
        attn_error error;
        assert_int_equal(
            api_keys_parse(files[i].text, strlen(files[i].text), &keys, &error),
            ATTN_E_FORMAT);
        assert_non_null(strstr(error.text, files[i].expected));
        assert_null(strstr(error.text, "0123456789"));
    }
    attn_error error;
    struct api_keys *keys;
    assert_int_equal(api_keys_parse("a:0123456789\0abcdef", 19, &keys, &error),
                     ATTN_E_FORMAT);
}

static void test_there_are_at_most_1000(void **state) {
    char text[1001 * 32] = "";
    struct api_keys *keys;
    attn_error error;
    size_t size = 0;
    (void)state;

    for (int i = 0; i < 1001; i++)
        size += (size_t)sprintf(text + size, "n%d:%016d\n", i, i);
    assert_int_equal(api_keys_parse(text, size, &keys, &error), ATTN_E_FORMAT);
    assert_non_null(strstr(error.text, "line 1001 is one key too many"));
    *strstr(text, "n1000:") = '\0';
    keys = parse(text);
    assert_string_equal(find(keys, "0000000000000999"), "n999");
    assert_string_equal(find(keys, "0000000000000000"), "n0");
    api_keys_destroy(keys);
}

static void test_keys_need_memory(void **state) {
    struct api_keys *keys;
    attn_error error;
    (void)state;
    fail_alloc_at(1);
    assert_int_equal(api_keys_parse("a:" KEY_A, 18, &keys, &error), ATTN_E_NOMEM);
    assert_true(fail_alloc_stop());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_key_has_its_name),
        cmocka_unit_test(test_only_a_whole_key_is_one),
        cmocka_unit_test(test_bad_files_are_refused_by_line),
        cmocka_unit_test(test_there_are_at_most_1000),
        cmocka_unit_test(test_keys_need_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
