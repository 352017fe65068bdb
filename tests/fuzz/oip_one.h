/* SPDX-License-Identifier: Apache-2.0 */
/* oip_one.h: one request of the Open Inference Protocol, for two fuzz targets. */
#ifndef ATTND_TESTS_FUZZ_OIP_ONE_H
#define ATTND_TESTS_FUZZ_OIP_ONE_H

#include "check.h"

/* Sends a body to each of the models. It is decoded in the memory that was reserved, and
 * a reply is written in pieces; or it is refused. `json_size` as in wire_input. Numbers
 * must be finite when all of them are JSON. */
void oip_try(const uint8_t *data, size_t size, size_t json_size);

#endif
