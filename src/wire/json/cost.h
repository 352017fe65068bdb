/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h: the memory that jansson needs to parse a text. */
#pragma once

#include <stddef.h>

/* Adds to *bytes the most that jansson allocates at one time for this text, which must
 * not be nested more than WIRE_DEPTH_MAX deep. *bytes becomes SIZE_MAX when the sum is
 * larger. Thread-safe. */
void wire_json_cost(const char *text, size_t size, size_t *bytes);
