/* SPDX-License-Identifier: Apache-2.0 */
/* request.h: a request of the Open Inference Protocol before its numbers are read. */
#pragma once

#include "wire/fields/decoder.h"
#include "wire/oip/oip.h"

#define WIRE_OIP_RANK_MAX 3

/* The parts of a body that were found. Points into it, and into itself. */
struct wire_oip_scan {
    struct wire_source source;
    size_t shapes[WIRE_NUM_FIELDS][WIRE_OIP_RANK_MAX]; /* of inputs */
    struct wire_oip_reply reply; /* the text of its id was not checked */
};
