/* SPDX-License-Identifier: Apache-2.0 */
/* test_captures.c: the hash against the vectors of FIPS 180, and the times of a PUT. */
#include "captures/capture.h"
#include "captures/put.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h needs those above. */
#include <cmocka.h>

#define NS_PER_SECOND ((int64_t)1000000000)
#define LIMIT         ((size_t)8 * 1024 * 1024)

static void assert_hash(const void *bytes, size_t size, size_t step,
                        const char *expected) {
    char text[SHA256_TEXT_MAX];
    struct sha256 hash;

    sha256_init(&hash);
    for (size_t i = 0; i < size; i += step)
        sha256_add(&hash, (const unsigned char *)bytes + i,
                   size - i < step ? size - i : step);
    sha256_finish(&hash, text);
    assert_string_equal(text, expected);
}

static void test_hashes_are_those_of_the_standard(void **state) {
    static const char two_blocks[] =
        "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    size_t million = 1000000;
    char *many = malloc(million);
    (void)state;

    assert_non_null(many);
    memset(many, 'a', million);
    assert_hash("", 0, 1,
                "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_hash("abc", 3, 1,
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_hash(two_blocks, 56, 56,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    for (size_t step = 1; step < million; step = 9 * step + 1)
        assert_hash(many, million, step,
                    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(many);
}

static bool reserve_all(void *context, size_t bytes) {
    (void)context;
    (void)bytes;
    return true;
}

/* Begins a PUT of a holder, dated back by `seconds`. NULL: it is refused. */
static struct capture_put *begin(struct captures *store, const char *holder, size_t size,
                                 int64_t seconds, struct capture_fault *ret_fault) {
    const struct capture_owner owner = {"", holder};
    struct capture_put *put;

    if (!capture_put_create(store, &owner, holder, strlen(holder), size, NS_PER_SECOND,
                            &put, ret_fault))
        return NULL;
    put->started -= seconds * NS_PER_SECOND;
    return put;
}

/* Returns why bytes are not taken. */
static enum capture_error add_byte(struct capture_put *put) {
    const struct capture_reserve reserve = {reserve_all, NULL};
    struct capture_fault fault = {.error = CAPTURE_NUM_ERRORS};

    return capture_put_add(put, (const unsigned char *)"", 1, &reserve, &fault)
               ? CAPTURE_NUM_ERRORS
               : fault.error;
}

static void test_put_ends_after_ten_minutes(void **state) {
    struct captures *store = captures_create(LIMIT, NS_PER_SECOND);
    struct capture_fault fault;
    (void)state;

    struct capture_put *young =
        begin(store, "young", LIMIT / 4, CAPTURES_PUT_SECONDS - 5, &fault);
    struct capture_put *old =
        begin(store, "old", LIMIT / 4, CAPTURES_PUT_SECONDS + 1, &fault);
    assert_non_null(young);
    assert_non_null(old);
    assert_true(capture_put_is_late(old) && !capture_put_is_late(young));
    assert_int_equal(add_byte(old), CAPTURE_E_TIMEOUT);
    assert_int_equal(add_byte(young), CAPTURE_NUM_ERRORS);
    /* A look at the store takes its room back. */
    assert_int_equal(captures_get_stats(store).bytes, LIMIT / 4);
    capture_put_destroy(old);
    capture_put_destroy(young);
    assert_int_equal(captures_get_stats(store).bytes, 0);
    captures_destroy(store);
}

static void test_slow_puts_end_when_another_wants_their_room(void **state) {
    struct captures *store = captures_create(LIMIT, NS_PER_SECOND);
    struct capture_fault fault;
    (void)state;

    struct capture_put *slow =
        begin(store, "slow", LIMIT / 2, CAPTURES_SLOW_SECONDS + 1, &fault);
    struct capture_put *new =
        begin(store, "new", LIMIT / 4, CAPTURES_SLOW_SECONDS - 5, &fault);
    assert_non_null(slow);
    assert_non_null(new);
    /* What fits beside it does not end it. */
    struct capture_put *small = begin(store, "small", LIMIT / 4, 0, &fault);
    assert_non_null(small);
    assert_int_equal(add_byte(slow), CAPTURE_NUM_ERRORS);
    struct capture_put *large = begin(store, "large", LIMIT / 2, 0, &fault);
    assert_non_null(large);
    assert_int_equal(add_byte(slow), CAPTURE_E_SLOW);
    assert_int_equal(add_byte(new), CAPTURE_NUM_ERRORS);
    /* None of the others is slow, so the next one is refused. */
    assert_null(begin(store, "late", LIMIT / 2, 0, &fault));
    assert_int_equal(fault.error, CAPTURE_E_FULL);
    assert_int_equal(fault.used, LIMIT);
    capture_put_destroy(slow);
    capture_put_destroy(new);
    capture_put_destroy(small);
    capture_put_destroy(large);
    assert_int_equal(captures_get_stats(store).bytes, 0);
    captures_destroy(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hashes_are_those_of_the_standard),
        cmocka_unit_test(test_put_ends_after_ten_minutes),
        cmocka_unit_test(test_slow_puts_end_when_another_wants_their_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
