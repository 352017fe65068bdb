/* SPDX-License-Identifier: Apache-2.0 */
/* reply.h: finds the end of an HTTP/1.1 reply, whose bytes arrive in any pieces. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOAD_HEAD_MAX ((size_t)16 * 1024) /* largest head of a reply */

enum load_progress {
    LOAD_MORE,  /* the reply goes on */
    LOAD_WHOLE, /* it has ended */
    LOAD_WRONG  /* it is not a reply that this program understands */
};

enum load_part {
    LOAD_PART_HEAD,
    LOAD_PART_BODY,
    LOAD_PART_TO_END, /* the body ends with the connection */
    LOAD_PART_CHUNK_SIZE,
    LOAD_PART_CHUNK,
    LOAD_PART_CHUNK_END,
    LOAD_PART_TRAILER
};

/* Zeroed, it waits for a reply. */
struct load_reply {
    enum load_part part;
    int status;    /* 0 until the head is complete */
    bool close;    /* the server closes the connection after it */
    size_t size;   /* of the head so far; or of a line of chunks: its characters */
    uint64_t rest; /* of the body, or of a chunk */
    char head[LOAD_HEAD_MAX + 1];
};

/* Makes it wait for another reply. */
void load_reply_reset(struct load_reply *reply);

/* Takes the next `size` bytes; more of them than the reply has are wrong. */
enum load_progress load_reply_take(struct load_reply *reply, const char *bytes,
                                   size_t size);
