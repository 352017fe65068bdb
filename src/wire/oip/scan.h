/* SPDX-License-Identifier: Apache-2.0 */
/* scan.h: finds the inputs, outputs and parameters of a request of the Open Inference
 * Protocol. */
#pragma once

#include "wire/oip/request.h"

/* Finds everything, and compares shapes with data. Allocates nothing, except for a string
 * that has escapes. Returns false with *ret_problem set. Thread-safe. */
bool wire_oip_scan(const struct wire_input *input, struct wire_oip_scan *ret_scan,
                   struct wire_problem *ret_problem);
