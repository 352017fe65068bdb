/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_options.c: timeouts and priorities in the JSON of both protocols. The tests
 * of safetensors have those in __metadata__; tests/data/invalid has the errors. */
#include "wire/oip/oip.h"
#include "wire_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define DAY_NS INT64_C(86400000000000)

struct option_case {
    const char *options; /* as members of a request, or as its parameters */
    int64_t timeout_ns;
    uint32_t priority;
};

/* wire_input.reserve */
static bool allow_bytes(void *context, size_t bytes, struct wire_problem *ret_problem) {
    (void)context;
    (void)ret_problem;
    return bytes < SIZE_MAX;
}

/* Reads a body for each case, with its options between `before` and `after`. */
static void read_cases(struct fixture *fixture, wire_read *read, const char *before,
                       const char *after, const struct option_case *cases,
                       size_t num_cases) {
    for (size_t i = 0; i < num_cases; i++) {
        char body[512];
        int size = snprintf(body, sizeof body, "%s%s%s", before, cases[i].options, after);
        const struct wire_input input = {.body = body,
                                         .size = (size_t)size,
                                         .json_size = WIRE_NO_SIZE,
                                         .models =
                                             (const attn_model *const *)fixture->models,
                                         .num_models = 1,
                                         .arena = &fixture->arena,
                                         .reserve = allow_bytes};
        arena_reset(&fixture->arena);
        if (!read(&input, &fixture->request, &fixture->problem))
            fail_msg("%s: %s", body, fixture->problem.detail);
        assert_int_equal(fixture->request.timeout_ns, cases[i].timeout_ns);
        assert_int_equal(fixture->request.priority, cases[i].priority);
    }
}

static void test_native_timeout_is_a_number_of_milliseconds(void **state) {
    static const struct option_case cases[] = {
        {"\"causal\":false", 0, 0},
        {"\"timeout_ms\":null,\"priority\":null", 0, 0},
        {"\"timeout_ms\":250,\"priority\":1", 250000000, 1},
        {"\"timeout_ms\":1.5,\"priority\":0", 1500000, 0},
        {"\"timeout_ms\":0.0000015", 2, 0}, /* rounded up */
        {"\"timeout_ms\":1e-30,\"priority\":2147483647", 1, INT32_MAX},
        {"\"timeout_ms\":8.64e7", DAY_NS, 0},
        {"\"timeout_ms\":86400000", DAY_NS, 0}};
    read_cases(*state, wire_native_read, "{\"queries\":[[1,2,3,4]],", "}", cases,
               sizeof cases / sizeof cases[0]);
}

static void test_oip_timeout_is_in_microseconds_and_0_is_none(void **state) {
    static const struct option_case cases[] = {
        {"null", 0, 0},
        {"{\"timeout\":0,\"priority\":0}", 0, 0},
        {"{\"timeout\":null,\"priority\":null}", 0, 0},
        {"{\"timeout\":1500,\"priority\":2}", 1500000, 2},
        {"{\"timeout\":86400000000,\"priority\":2147483647}", DAY_NS, INT32_MAX}};
    read_cases(*state, wire_oip_read, "{\"parameters\":",
               ",\"inputs\":[{\"name\":\"queries\",\"shape\":[1,4],"
               "\"datatype\":\"FP32\",\"data\":[1,2,3,4]}]}",
               cases, sizeof cases / sizeof cases[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_native_timeout_is_a_number_of_milliseconds),
        cmocka_unit_test(test_oip_timeout_is_in_microseconds_and_0_is_none),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
