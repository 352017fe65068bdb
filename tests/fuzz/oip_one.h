/* SPDX-License-Identifier: Apache-2.0 */
/* oip_one.h: one request of the Open Inference Protocol, for two fuzz targets. */
#ifndef ATTND_TESTS_FUZZ_OIP_ONE_H
#define ATTND_TESTS_FUZZ_OIP_ONE_H

#include "fuzz.h"
#include "wire_fixture.h"

#include <stdbool.h>

/* Aborts unless `holds`. */
void oip_check(bool holds, const char *what);

/* The models, made once. */
struct fixture *oip_fixture(void);

/* Aborts unless the problem is told as JSON. */
void oip_check_problem(const struct wire_problem *problem);

/* Reads a request for one of the models: it is read to sizes that are all there, in the
 * memory that was foreseen, and answered in pieces of any size; or it is refused with an
 * error that is JSON. `json_size` as in wire_input. Numbers that came as JSON alone must
 * be finite. */
void oip_try(const uint8_t *data, size_t size, size_t json_size);

#endif
