/* SPDX-License-Identifier: Apache-2.0 */
/* test_bench_requests.c: tests of the files of requests that attnd-bench http reads. */
#include "bench/http/requests.h"
#include "fail_alloc.h"
#include "safetensors/parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static char folder[] = "/tmp/attnd-unit-XXXXXX";
static char requests_path[64];

static int make_request_folder(void **state) {
    (void)state;
    parse_json_init();
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(requests_path, sizeof requests_path, "%s/requests.jsonl", folder);
    return 0;
}

static int remove_request_folder(void **state) {
    (void)state;
    unlink(requests_path);
    return rmdir(folder);
}

static void write_text(const char *path, const char *text, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    fclose(file);
}

static attn_status read_requests(const char *text, struct load_requests *ret_requests,
                                 attn_error *ret_error) {
    static const struct load_target target = {.listen = "h:1", .path = "/default"};
    static char header[] = "X-All: 1";
    static char *items[] = {header};
    static const struct config_texts headers = {items, 1};

    if (text == NULL)
        return load_requests_read(NULL, &target, &headers, ret_requests, ret_error);
    write_text(requests_path, text, strlen(text));
    return load_requests_read(requests_path, &target, &headers, ret_requests, ret_error);
}

static void assert_bytes(const struct load_request *request, const char *expected) {
    assert_int_equal(request->size, strlen(expected));
    assert_memory_equal(request->bytes, expected, request->size);
}

static void test_requests_are_made_from_their_members(void **state) {
    (void)state;
    char body_path[80];
    struct load_requests requests;
    attn_error error;

    snprintf(body_path, sizeof body_path, "%s/b.safetensors", folder);
    write_text(body_path, "\0\1\n", 3);
    assert_int_equal(
        read_requests(
            "\n {\"path\":\"/a?b\"}\n"
            "{\"body\": {\"x\": [1.50,\n 2e0]}, \"weight\": 3}\n\n"
            "{\"body\": \"a\\nb\", \"content_type\": \"text/plain\","
            " \"method\": \"PUT\", \"headers\": {\"A\": \"b\", \"hOst\": \"c\"}}"
            "{\"body_file\": \"b.safetensors\"} {\"method\": \"DELETE\"}",
            &requests, &error),
        ATTN_OK);
    assert_int_equal(requests.count, 5);
    assert_bytes(&requests.items[0],
                 "GET /a?b HTTP/1.1\r\nX-All: 1\r\nHost: h:1\r\n\r\n");
    assert_bytes(&requests.items[1],
                 "POST /default HTTP/1.1\r\nX-All: 1\r\nHost: h:1\r\n"
                 "Content-Type: application/json\r\nContent-Length: 19\r\n\r\n"
                 "{\"x\": [1.50,\n 2e0]}");
    assert_bytes(&requests.items[2],
                 "PUT /default HTTP/1.1\r\nX-All: 1\r\nA: b\r\nhOst: c\r\n"
                 "Content-Type: text/plain\r\nContent-Length: 3\r\n\r\na\nb");
    static const char head[] = "POST /default HTTP/1.1\r\nX-All: 1\r\nHost: h:1\r\n"
                               "Content-Type: application/vnd.safetensors\r\n"
                               "Content-Length: 3\r\n\r\n";
    assert_int_equal(requests.items[3].size, sizeof head - 1 + 3);
    assert_memory_equal(requests.items[3].bytes, head, sizeof head - 1);
    assert_memory_equal(requests.items[3].bytes + sizeof head - 1, "\0\1\n", 3);
    assert_bytes(&requests.items[4], "DELETE /default HTTP/1.1\r\nX-All: 1\r\n"
                                     "Host: h:1\r\nContent-Length: 0\r\n\r\n");
    load_requests_deinit(&requests);
    unlink(body_path);
}

static void test_without_a_file_the_path_of_the_url_is_fetched(void **state) {
    (void)state;
    struct load_requests requests;
    attn_error error;
    assert_int_equal(read_requests(NULL, &requests, &error), ATTN_OK);
    assert_int_equal(requests.count, 1);
    assert_bytes(&requests.items[0],
                 "GET /default HTTP/1.1\r\nX-All: 1\r\nHost: h:1\r\n\r\n");
    load_requests_deinit(&requests);
}

static void test_requests_are_chosen_by_weight(void **state) {
    (void)state;
    struct load_requests requests;
    attn_error error;
    size_t counts[4] = {0};

    assert_int_equal(
        read_requests("{\"weight\": 5}{}{\"weight\": 1000000}{\"weight\": 94}", &requests,
                      &error),
        ATTN_OK);
    for (uint64_t i = 0; i < 1000100; i++)
        counts[load_requests_choose(&requests, i + 1000100)]++;
    assert_true(counts[0] == 5 && counts[1] == 1 && counts[2] == 1000000 &&
                counts[3] == 94);
    load_requests_deinit(&requests);
}

static void test_wrong_request_is_refused_with_its_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "has no requests"},
        {"\n \n", "has no requests"},
        {"{}\n[]", "line 2"},
        {"{}\n{\"path\": }", "line 2, column 10"},
        {"{\"path\": \"/\"", "line 1"},
        {"{}\n{\"paht\": \"/\"}", "'paht' is not a key"},
        {"{\"path\": \"/\", \"path\": \"/\"}", "path"},
        {"{}\n\n{\"path\": 3}", ":3: path is not a string"},
        {"{\"path\": \"x\"}", ":1: path must begin with '/'"},
        {"{\"path\": \"/a\\r\\nX: y\"}", "path must begin"},
        {"{\"method\": \"HEAD\"}", "method is not"},
        {"{\"method\": \"get\"}", "method is not"},
        {"{\"weight\": 0}", "weight is not"},
        {"{\"weight\": 1.5}", "weight is not"},
        {"{\"weight\": 1000001}", "weight is not"},
        {"{\"weight\": 99999999999999999999}", ":1: "},
        {"{\"body\": 3}", "body is not"},
        {"{\"body\": {\"x\": [1,]}}", ":1: "},
        {"{\"body\": {\"x\": nonsense}}", ":1: "},
        {"{\"body\": {}, \"body_file\": \"x\"}", "body and body_file"},
        {"{\"body_file\": \"missing\"}", "missing: No such file"},
        {"{\"body_file\": \"/\"}", "Is a directory"},
        {"{\"headers\": []}", "headers is not an object"},
        {"{\"headers\": {\"A\": 1}}", "'A' cannot be sent"},
        {"{\"headers\": {\"A\": \"x\\r\\nB: y\"}}", "'A' cannot be sent"},
        {"{\"headers\": {\"A b\": \"x\"}}", "'A b' cannot be sent"},
        {"{\"headers\": {\"\": \"x\"}}", "cannot be sent"},
        {"{\"headers\": {\"content-length\": \"1\"}}", "cannot be sent"},
        {"{\"headers\": {\"Transfer-Encoding\": \"chunked\"}}", "cannot be sent"},
        {"{\"headers\": {\"Connection\": \"upgrade\"}}", "cannot be sent"},
        {"{\"body\": {}, \"content_type\": \"a\\nb\"}", "content_type"},
    };
    struct load_requests requests = {NULL, 0};
    attn_error error;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_not_equal(read_requests(cases[i].text, &requests, &error), ATTN_OK);
        if (strstr(error.text, cases[i].words) == NULL)
            fail_msg("%s: %s", cases[i].text, error.text);
        assert_non_null(strstr(error.text, requests_path));
    }
    const struct load_target target = {.path = "/"};
    const struct config_texts none = {NULL, 0};
    write_text(requests_path, "{}\n\0{}", 6);
    assert_int_equal(load_requests_read(requests_path, &target, &none, &requests, &error),
                     ATTN_E_VALUE);
    assert_null(requests.items);
}

static void test_failed_allocation_is_reported(void **state) {
    (void)state;
    attn_error error;
    size_t nth = 1;

    for (;; nth++) {
        struct load_requests requests = {NULL, 0};
        fail_alloc_at(nth);
        attn_status status = read_requests(
            "{\"path\": \"/\", \"headers\": {\"A\": \"b\"}}{\"body\": {\"x\": [1]}}{}",
            &requests, &error);
        bool failed = fail_alloc_stop();
        if (status == ATTN_OK) {
            load_requests_deinit(&requests);
            assert_false(failed);
            break;
        }
        assert_true(failed);
        assert_null(requests.items);
    }
    assert_true(nth > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_are_made_from_their_members),
        cmocka_unit_test(test_without_a_file_the_path_of_the_url_is_fetched),
        cmocka_unit_test(test_requests_are_chosen_by_weight),
        cmocka_unit_test(test_wrong_request_is_refused_with_its_line),
        cmocka_unit_test(test_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, make_request_folder, remove_request_folder);
}
