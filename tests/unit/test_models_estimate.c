/* SPDX-License-Identifier: Apache-2.0 */
/* test_models_estimate.c: tests of how long requests are expected to take. */
#include "fail_alloc.h"
#include "models/estimate.h"

#include <attnd/library.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the headers above. */
#include <cmocka.h>

static attn_model *models[2];
static struct estimate *estimate;

static int set_up(void **state) {
    (void)state;
    attn_error error;
    return attn_init(&error) == ATTN_OK &&
                   attn_model_demo("d2l", NULL, &models[0], &error) == ATTN_OK &&
                   attn_model_demo("journey", NULL, &models[1], &error) == ATTN_OK &&
                   estimate_create((const attn_model *const *)models, 2, NULL,
                                   &estimate) == ATTN_OK
               ? 0
               : -1;
}

static int tear_down(void **state) {
    (void)state;
    estimate_destroy(estimate);
    estimate_destroy(NULL);
    attn_model_destroy(models[0]);
    attn_model_destroy(models[1]);
    return 0;
}

static struct estimate_body body_of(size_t size, bool text) {
    return (struct estimate_body){(const attn_model *const *)models, 1, size, text};
}

static int64_t total_of(const struct estimate_body *body) {
    int64_t decode, later;
    estimate_body(estimate, body, &decode, &later);
    assert_in_range(decode, 0, INT64_MAX);
    assert_in_range(later, 0, INT64_MAX);
    return decode + later;
}

static void test_an_unknown_body_is_guessed_by_its_size(void **state) {
    (void)state;
    const struct estimate_body small = body_of(10000, false),
                               large = body_of(10000000, false),
                               text = body_of(10000000, true);
    assert_true(total_of(&small) < total_of(&large));
    assert_true(total_of(&large) > 10 * 1000 * 1000);
    assert_true(total_of(&text) > 10 * 1000 * 1000);
}

static void test_a_guess_grows_no_faster_than_the_body(void **state) {
    (void)state;
    const struct estimate_body large = body_of(1000000, true),
                               larger = body_of(50000000, true);
    assert_true(total_of(&larger) < 60 * total_of(&large));
}

static void test_a_body_of_any_model_is_guessed_by_the_fastest(void **state) {
    (void)state;
    struct estimate_body any = body_of(10000000, true), journey = any;
    any.num_models = 2;
    journey.models++;
    assert_true(total_of(&any) <= total_of(&journey));
}

static void test_operations_and_bytes_cost_time(void **state) {
    (void)state;
    int64_t few = estimate_compute(estimate, models[0], 1e6);
    assert_in_range(few, 1, INT64_MAX);
    assert_true(estimate_compute(estimate, models[0], 1e9) > 100 * few);
    assert_true(estimate_reply(estimate, true, 1 << 20) > 0);
}

static void test_what_was_measured_replaces_the_guess(void **state) {
    (void)state;
    const struct estimate_body body = body_of(5000, true), other = body_of(500, true);
    const struct estimate_measured measured = {.model = models[0],
                                               .flops = 1e6,
                                               .reply = 1 << 20,
                                               .decode = 1000,
                                               .compute = 7000000,
                                               .encode = 3000000,
                                               .write = 1000000};
    int64_t decode, later, other_total = total_of(&other);

    for (int i = 0; i < 100; i++)
        estimate_learn(estimate, &body, &measured);
    estimate_body(estimate, &body, &decode, &later);
    assert_in_range(decode, 900, 1100);
    assert_in_range(later, 9900000, 10000000);
    assert_in_range(estimate_reply(estimate, true, 1 << 20), 900000, 1100000);
    assert_in_range(estimate_compute(estimate, models[0], 1e6), 6800000, 7100000);
    assert_true(total_of(&other) >= other_total); /* of another size: not replaced */

    struct estimate_measured outlier = measured;
    outlier.compute *= 1000;
    estimate_learn(estimate, &body, &outlier);
    estimate_body(estimate, &body, &decode, &later);
    assert_in_range(later, 10000000, 12000000);
}

static void test_estimate_without_memory_is_not_created(void **state) {
    (void)state;
    for (size_t nth = 1;; nth++) {
        struct estimate *failed = NULL;
        fail_alloc_at(nth);
        attn_status status =
            estimate_create((const attn_model *const *)models, 2, NULL, &failed);
        if (!fail_alloc_stop()) {
            estimate_destroy(failed);
            assert_in_range(nth, 6, 20);
            break;
        }
        assert_int_equal(status, ATTN_E_NOMEM);
        assert_null(failed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_unknown_body_is_guessed_by_its_size,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_a_body_of_any_model_is_guessed_by_the_fastest, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_guess_grows_no_faster_than_the_body,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_operations_and_bytes_cost_time, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_was_measured_replaces_the_guess, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_estimate_without_memory_is_not_created,
                                        set_up, tear_down),
    };
    return cmocka_run_group_tests_name("estimate", tests, NULL, NULL);
}
