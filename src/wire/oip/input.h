/* SPDX-License-Identifier: Apache-2.0 */
/* input.h: scans one element of `inputs` of a request. */
#pragma once

#include "wire/oip/request.h"

/* The binary data of a request that belongs to no input yet. */
struct wire_oip_binary {
    const unsigned char *at; /* NULL: no header states where it begins */
    size_t size;
};

/* Scans the object at the cursor, element `index` of the list, into the element of
 * `inputs` [WIRE_OIP_NUM_INPUTS] that has its name, and moves `binary` past its data. A
 * name may appear once. Returns false with the cursor's problem set. */
bool wire_oip_input_scan(struct wire_cursor *cursor, size_t index,
                         struct wire_oip_binary *binary, struct wire_oip_input *inputs);
