/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: what bounds captures, and what is counted about them. */
#pragma once

#include "wire/problem.h"

#include <stdint.h>

#define CAPTURE_NAME_MAX     128 /* bytes of a name, without its terminator */
#define CAPTURE_HOLDER_MAX   96  /* bytes of a holder or space, with it */
#define CAPTURE_HASH_MAX     65  /* bytes of a SHA-256 as hexadecimal digits, with it */
#define CAPTURE_BYTES_MIN    ((size_t)64 * 1024) /* that each counts at least */
#define CAPTURES_OF_HOLDER   256
#define CAPTURES_PUT_SECONDS 600

enum capture_removal {
    CAPTURE_REMOVED_DELETED,
    CAPTURE_REMOVED_EXPIRED,
    CAPTURE_REMOVED_KEY,
    CAPTURE_REMOVED_ROOM, /* another one got its room */
    CAPTURE_NUM_REMOVALS
};

struct capture_stats {
    size_t captures, bytes, limit;
    uint64_t found, unknown; /* lookups for attention */
    uint64_t removals[CAPTURE_NUM_REMOVALS];
    uint64_t refusals[WIRE_NUM_ERRORS]; /* PUTs */
};
