/* SPDX-License-Identifier: Apache-2.0 */
/* decoder.h: a request while its fields are read. */
#pragma once

#include "wire/checks/given.h"
#include "wire/fields/source.h"

/* A request that is being read. */
struct wire_decoder {
    const struct wire_source *source;
    struct wire_request request;
    struct wire_need need;
    struct wire_given given; /* without a model */
    struct wire_tensors tensors;
};
