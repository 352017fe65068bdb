/* SPDX-License-Identifier: Apache-2.0 */
/* input.h: scans one element of `inputs` of a request. */
#pragma once

#include "wire/json/list.h"
#include "wire/oip/request.h"

/* Scans the object at the cursor into the value of its name, and moves scan->binary past
 * its data; `context` is the struct wire_oip_scan. The shape was compared with the data:
 * binary data has the right size, and JSON has at least count - 1 commas. A name may
 * appear once. */
wire_element_reader wire_oip_input_scan;
