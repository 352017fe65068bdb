/* SPDX-License-Identifier: Apache-2.0 */
/* input.h: scans one element of `inputs` of a request. */
#pragma once

#include "wire/oip/request.h"

/* The binary data of a request that belongs to no input yet. */
struct wire_oip_binary {
    const unsigned char *at; /* NULL: no header states where it begins */
    size_t size;
};

/* Scans the object at the cursor, element `index` of the list, into the value of its
 * name, and moves `binary` past its data. The shape was compared with the data: binary
 * data has the right size, and JSON has at least count - 1 commas. A name may appear
 * once. Returns false with the cursor's problem set. */
bool wire_oip_input_scan(struct wire_cursor *cursor, size_t index,
                         struct wire_oip_binary *binary, struct wire_oip_scan *scan);
