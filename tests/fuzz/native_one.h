/* SPDX-License-Identifier: Apache-2.0 */
/* native_one.h: what a request of POST /v1/attention has to be, in whatever form it came.
 */
#ifndef ATTND_TESTS_NATIVE_ONE_H
#define ATTND_TESTS_NATIVE_ONE_H

#include "fuzz.h"
#include "wire_fixture.h"

/* Aborts, saying what is wrong, unless `holds`. */
void native_check(bool holds, const char *what);

/* Returns the models and memory that all inputs share. */
struct fixture *native_fixture(void);

/* Checks that a decoded call has finite numbers for all its sizes, and lengths and
 * selections within their limits. */
void native_check_call(const struct wire_request *request);

/* Checks that a problem is a client's and prints as JSON. */
void native_check_problem(const struct wire_problem *problem);

#endif
