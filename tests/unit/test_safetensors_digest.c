/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors_digest.c: digests of bytes, which must be the same on every CPU. */
#include "safetensors/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

#define BYTES 1000

static void fill(unsigned char bytes[BYTES]) {
    for (unsigned i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)(i * i + 7 * i);
}

/* Adds the bytes in pieces of a size. */
static void find_digest(const unsigned char *bytes, size_t size, size_t piece,
                        char ret_text[DIGEST_TEXT_SIZE]) {
    struct digest digest;
    digest_init(&digest);
    for (size_t at = 0; at < size; at += piece)
        digest_add(&digest, bytes + at, piece < size - at ? piece : size - at);
    digest_end(&digest, ret_text);
}

/* By the definition in digest.h, with integers of Python. */
static void test_digests_are_as_defined_however_bytes_come(void **state) {
    (void)state;
    static const struct {
        size_t size;
        const char *text;
    } cases[] = {{0, "6b0dbf8fccc9fb340dea6ec15fd9b289"},
                 {1, "a23c51d8080e6d15c897418528d5bf5c"},
                 {127, "ada16fe312d6b1b2b9cba7c2acbf3138"},
                 {128, "1e6ebfab324e5bf9ce3c1c3a036511c9"},
                 {1000, "9de50c7b6ec856393fff60d9f3ea9000"}};
    unsigned char bytes[BYTES];
    char text[DIGEST_TEXT_SIZE];

    fill(bytes);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t piece = 1; piece <= BYTES; piece += piece < 140 ? 1 : 173) {
            find_digest(bytes, cases[i].size, piece, text);
            assert_string_equal(text, cases[i].text);
        }
    }
}

static void test_each_byte_and_its_place_count(void **state) {
    (void)state;
    unsigned char bytes[BYTES];
    char text[DIGEST_TEXT_SIZE], other[DIGEST_TEXT_SIZE];

    fill(bytes);
    find_digest(bytes, BYTES, BYTES, text);
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] ^= 1;
        find_digest(bytes, BYTES, BYTES, other);
        assert_string_not_equal(text, other);
        assert_memory_not_equal(text + 16, other + 16, 16); /* both halves */
        assert_memory_not_equal(text, other, 16);
        bytes[i] ^= 1;
    }

    for (size_t i = 0; i + 16 < BYTES; i += 8) { /* neighbours change places */
        unsigned char moved[BYTES];
        memcpy(moved, bytes, BYTES);
        memcpy(moved + i, bytes + i + 8, 8);
        memcpy(moved + i + 8, bytes + i, 8);
        find_digest(moved, BYTES, BYTES, other);
        assert_string_not_equal(text, other);
    }
    find_digest((const unsigned char[2]){0}, 1, 1, text);
    find_digest((const unsigned char[2]){0}, 2, 2, other);
    assert_string_not_equal(text, other);
}

static void test_what_a_thread_notes_goes_to_its_digest(void **state) {
    (void)state;
    unsigned char bytes[BYTES];
    char text[DIGEST_TEXT_SIZE], noted[DIGEST_TEXT_SIZE];
    struct digest digest;

    fill(bytes);
    digest_note(bytes, 1); /* to none */
    digest_init(&digest);
    assert_null(digest_enter(&digest));
    digest_note(bytes, BYTES);
    assert_ptr_equal(digest_enter(NULL), &digest);
    digest_note(bytes, BYTES);
    digest_end(&digest, noted);
    find_digest(bytes, BYTES, BYTES, text);
    assert_string_equal(noted, text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests_are_as_defined_however_bytes_come),
        cmocka_unit_test(test_each_byte_and_its_place_count),
        cmocka_unit_test(test_what_a_thread_notes_goes_to_its_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
