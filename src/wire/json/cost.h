/* SPDX-License-Identifier: Apache-2.0 */
/* cost.h: what jansson takes to parse a text. */
#ifndef ATTND_WIRE_JSON_COST_H
#define ATTND_WIRE_JSON_COST_H

#include <stddef.h>

/* Adds to *bytes the most that jansson holds at one time for this text, which nests at
 * most WIRE_MAX_DEPTH deep; *bytes stays at SIZE_MAX when that does not fit. Thread-safe.
 */
void wire_json_cost(const char *text, size_t size, size_t *bytes);

#endif
