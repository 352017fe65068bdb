/* SPDX-License-Identifier: Apache-2.0 */
/* selection.h: the heads and queries whose attention weights a reply has. */
#pragma once

#include "wire/fields/options.h"

wire_field_reader wire_read_selection; /* of heads or queries */

/* Checks that the weights to select from are requested. Returns false with *ret_problem
 * set. */
bool wire_selection_check(const struct wire_request *request,
                          struct wire_problem *ret_problem);
