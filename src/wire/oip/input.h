/* SPDX-License-Identifier: Apache-2.0 */
/* input.h: one element of a request's `inputs`. */
#ifndef ATTND_WIRE_OIP_INPUT_H
#define ATTND_WIRE_OIP_INPUT_H

#include "wire/oip/request.h"

/* The binary data of a request that no input has taken yet. */
struct wire_oip_binary {
    const unsigned char *at; /* NULL: there is no header that says where it begins */
    size_t size;
};

/* Scans the object at the cursor, the element `index` of `inputs`, to the input of its
 * name, which must not have been there before; takes what it needs of `binary`. Returns
 * false with the cursor's problem set. */
bool wire_oip_input_scan(struct wire_cursor *cursor, size_t index,
                         struct wire_oip_binary *binary, struct wire_oip_input *inputs);

#endif
