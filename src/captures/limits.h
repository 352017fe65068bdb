/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h: what bounds captures, and what is told and counted about them. */
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

struct shared_text;

/* What is told about a capture. */
struct capture_info {
    char name[CAPTURE_NAME_MAX + 1];
    char sha256[CAPTURE_HASH_MAX];
    struct shared_text *description; /* of its layers; while the capture has a user */
    size_t bytes;                    /* that it counts */
    int64_t created, last_use;       /* in seconds since 1970 */
    int64_t ttl;                     /* in ns */
};

struct capture_stats {
    size_t captures, bytes, limit;
    uint64_t found, unknown; /* lookups for attention */
    uint64_t removals[CAPTURE_NUM_REMOVALS];
    uint64_t refusals[WIRE_NUM_ERRORS]; /* PUTs */
};
