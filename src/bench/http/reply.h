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

/* What comes next. All but data is lines. */
enum load_part {
    LOAD_PART_HEAD,
    LOAD_PART_BODY,
    LOAD_PART_TO_END, /* the body ends with the connection */
    LOAD_PART_CHUNK_SIZE,
    LOAD_PART_CHUNK,
    LOAD_PART_CHUNK_END,
    LOAD_PART_TRAILER
};

struct load_reply {
    enum load_part part;
    enum load_part body; /* the part after the head */
    int status;          /* 0 until its line is complete */
    bool close;          /* the server closes the connection after it */
    uint64_t rest;       /* of the body, or of a chunk */
    size_t head_size;    /* of all lines of the head and the trailer so far */
    size_t line_size;
    char line[LOAD_HEAD_MAX + 1]; /* the one that has begun */
};

/* Makes it wait for another reply. */
void load_reply_reset(struct load_reply *reply);

/* Takes the next `size` bytes; more of them than the reply has are wrong. */
enum load_progress load_reply_take(struct load_reply *reply, const char *bytes,
                                   size_t size);
