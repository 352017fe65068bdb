/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: reads what of a reply says where it ends (RFC 9112, sections 6 and 7). */
#include "bench/http/reply.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define DIGITS_MAX 15 /* of a size, so that it fits into 64 bits */

void load_reply_reset(struct load_reply *reply) {
    reply->part = LOAD_PART_HEAD;
    reply->status = 0;
    reply->close = false;
    reply->size = 0;
    reply->rest = 0;
}

/* Returns the value of a header line that has this name, or NULL. */
static const char *header_value(const char *line, const char *name) {
    size_t size = strlen(name);
    if (strncasecmp(line, name, size) != 0 || line[size] != ':')
        return NULL;
    return line + size + 1 + strspn(line + size + 1, " \t");
}

static bool parse_length(const char *text, uint64_t *ret_length) {
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > DIGITS_MAX || strchr(" \t\r", text[digits]) == NULL)
        return false;
    *ret_length = 0;
    for (size_t i = 0; i < digits; i++)
        *ret_length = *ret_length * 10 + (uint64_t)(text[i] - '0');
    return true;
}

/* Reads a complete head, a string. Returns false when it is wrong. Another head follows
 * one with a status below 200. */
static bool read_head(struct load_reply *reply) {
    int minor, end = 0;
    bool has_length = false, chunked = false;

    if (sscanf(reply->head, "HTTP/1.%1d %3d%n", &minor, &reply->status, &end) != 2 ||
        strchr(" \r", reply->head[end]) == NULL || reply->status < 100 ||
        reply->status == 101) /* which needs an Upgrade that was not sent */
        return false;
    if (reply->status < 200) {
        load_reply_reset(reply);
        return true;
    }
    reply->close = minor == 0;
    for (const char *line = strstr(reply->head, "\r\n"); line != NULL;
         line = strstr(line, "\r\n")) {
        line += 2;
        const char *value;
        if ((value = header_value(line, "content-length")) != NULL) {
            if (!parse_length(value, &reply->rest))
                return false;
            has_length = true;
        } else if ((value = header_value(line, "transfer-encoding")) != NULL) {
            chunked = strncasecmp(value, "chunked", 7) == 0;
        } else if ((value = header_value(line, "connection")) != NULL) {
            reply->close = reply->close || strncasecmp(value, "close", 5) == 0;
        }
    }

    reply->part = has_length ? LOAD_PART_BODY : LOAD_PART_TO_END;
    if (chunked) /* whatever the length says */
        reply->part = LOAD_PART_CHUNK_SIZE;
    bool is_empty = reply->status == 204 || reply->status == 304;
    if (is_empty)
        reply->part = LOAD_PART_BODY;
    if (is_empty || chunked)
        reply->rest = 0;
    reply->close = reply->close || reply->part == LOAD_PART_TO_END;
    reply->size = 0;
    return true;
}

/* Takes one byte of a line with the size of a chunk. */
static bool take_size(struct load_reply *reply, unsigned char c) {
    enum { IN_EXTENSION = DIGITS_MAX + 1 };

    if (c == '\n') {
        reply->part = reply->rest > 0 ? LOAD_PART_CHUNK : LOAD_PART_TRAILER;
        bool has_digits = reply->size > 0;
        reply->size = 0;
        return has_digits;
    }
    if (reply->size == IN_EXTENSION)
        return true;
    if (isxdigit(c) && reply->size < DIGITS_MAX) {
        reply->size++;
        reply->rest =
            reply->rest * 16 + (uint64_t)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
        return true;
    }
    if (reply->size == 0 || strchr("; \t\r", c) == NULL)
        return false;
    reply->size = IN_EXTENSION;
    return true;
}

/* Takes one byte outside the data of chunks. */
static enum load_progress take_line_byte(struct load_reply *reply, char c) {
    switch (reply->part) {
    case LOAD_PART_CHUNK_SIZE:
        return take_size(reply, (unsigned char)c) ? LOAD_MORE : LOAD_WRONG;
    case LOAD_PART_CHUNK_END:
        if (c == '\n')
            reply->part = LOAD_PART_CHUNK_SIZE;
        return c == '\n' || c == '\r' ? LOAD_MORE : LOAD_WRONG;
    default: /* the trailer */
        if (c == '\n' && reply->size == 0)
            return LOAD_WHOLE;
        if (c != '\r')
            reply->size = c == '\n' ? 0 : reply->size + 1;
        return LOAD_MORE;
    }
}

static enum load_progress take_chunks(struct load_reply *reply, const char *at,
                                      const char *end) {
    while (at < end) {
        if (reply->part == LOAD_PART_CHUNK) {
            uint64_t size = (uint64_t)(end - at);
            size = size < reply->rest ? size : reply->rest;
            at += size;
            reply->rest -= size;
            if (reply->rest == 0)
                reply->part = LOAD_PART_CHUNK_END;
            continue;
        }
        enum load_progress progress = take_line_byte(reply, *at++);
        if (progress == LOAD_WHOLE && at < end)
            return LOAD_WRONG;
        if (progress != LOAD_MORE)
            return progress;
    }
    return LOAD_MORE;
}

/* Takes bytes of the head. Advances *at past them. */
static enum load_progress take_head(struct load_reply *reply, const char **at,
                                    const char *end) {
    size_t before = reply->size, room = LOAD_HEAD_MAX - before;
    size_t size = (size_t)(end - *at) < room ? (size_t)(end - *at) : room;
    size_t from = before > 3 ? before - 3 : 0; /* where the end may begin */

    memcpy(reply->head + before, *at, size);
    reply->size += size;
    reply->head[reply->size] = '\0';
    const char *found = memmem(reply->head + from, reply->size - from, "\r\n\r\n", 4);
    if (found == NULL)
        return reply->size == LOAD_HEAD_MAX ? LOAD_WRONG : LOAD_MORE;

    size_t head = (size_t)(found - reply->head) + 4;
    *at += head - before;
    reply->head[head] = '\0';
    return read_head(reply) ? LOAD_WHOLE : LOAD_WRONG;
}

enum load_progress load_reply_take(struct load_reply *reply, const char *bytes,
                                   size_t size) {
    const char *at = bytes, *end = bytes + size;

    while (reply->part == LOAD_PART_HEAD) {
        enum load_progress progress = take_head(reply, &at, end);
        if (progress != LOAD_WHOLE)
            return progress;
    }
    if (reply->part == LOAD_PART_TO_END)
        return LOAD_MORE;
    if (reply->part != LOAD_PART_BODY)
        return take_chunks(reply, at, end);
    if ((uint64_t)(end - at) > reply->rest)
        return LOAD_WRONG;
    reply->rest -= (uint64_t)(end - at);
    return reply->rest == 0 ? LOAD_WHOLE : LOAD_MORE;
}
