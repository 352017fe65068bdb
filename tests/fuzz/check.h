/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: what holds of every request that is decoded, and of every problem, whatever
 * the protocol. */
#ifndef ATTND_TESTS_FUZZ_CHECK_H
#define ATTND_TESTS_FUZZ_CHECK_H

#include "fuzz.h"
#include "wire_fixture.h"

/* Prints `what` is wrong and aborts, unless `holds`. */
void fuzz_check(bool holds, const char *what);

/* Returns the models and the arena that all inputs share. */
struct fixture *fuzz_fixture(void);

/* Returns a copy of the input that is exactly as large, so that a sanitizer finds a read
 * past its end. The caller frees it. */
char *fuzz_copy(const uint8_t *data, size_t size);

/* wire_input.reserve: adds to the size_t that is its context. */
bool fuzz_reserve(void *context, size_t bytes, struct wire_problem *ret_problem);

/* Checks that a decoded request has numbers for all its sizes, and lengths and selections
 * within their limits. Numbers that can reach the result must be finite, or, when
 * `finite`, all. */
void fuzz_check_request(const struct wire_request *request, bool finite);

/* Checks that the client is to blame for a problem, and that it prints as JSON. */
void fuzz_check_problem(const struct wire_problem *problem,
                        const struct wire_error_format *format);

#endif
