/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c: reads what of a reply says where it ends (RFC 9112, sections 6 and 7). */
#include "bench/http/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DIGITS_MAX 15 /* of a size, so that it fits into 64 bits */

void load_reply_reset(struct load_reply *reply) {
    reply->part = LOAD_PART_HEAD;
    reply->body = LOAD_PART_TO_END;
    reply->status = 0;
    reply->close = false;
    reply->rest = reply->head_size = reply->line_size = 0;
}

/* --- lines --- */

/* Reads a size, behind which the line ends or has one of `ends`. */
static bool take_digits(const char *text, int base, const char *ends,
                        uint64_t *ret_size) {
    size_t digits = strspn(text, base == 16 ? "0123456789abcdefABCDEF" : "0123456789");
    *ret_size = strtoull(text, NULL, base);
    return digits > 0 && digits <= DIGITS_MAX && strchr(ends, text[digits]) != NULL;
}

static enum load_progress take_status(struct load_reply *reply, const char *line) {
    int minor, end = 0;
    if (sscanf(line, "HTTP/1.%1d %3d%n", &minor, &reply->status, &end) != 2 ||
        strchr(" ", line[end]) == NULL || reply->status < 100 ||
        reply->status == 101) /* which needs an Upgrade that was not sent */
        return LOAD_WRONG;
    reply->close = minor == 0;
    return LOAD_MORE;
}

/* Returns the value of a header line that has this name, or NULL. */
static const char *header_value(const char *line, const char *name) {
    size_t size = strlen(name);
    if (strncasecmp(line, name, size) != 0 || line[size] != ':')
        return NULL;
    return line + size + 1 + strspn(line + size + 1, " \t");
}

static enum load_progress take_field(struct load_reply *reply, const char *line) {
    const char *value;
    if ((value = header_value(line, "content-length")) != NULL) {
        if (!take_digits(value, 10, " \t", &reply->rest))
            return LOAD_WRONG;
        if (reply->body == LOAD_PART_TO_END) /* chunks go before a length */
            reply->body = LOAD_PART_BODY;
    } else if ((value = header_value(line, "transfer-encoding")) != NULL) {
        if (strncasecmp(value, "chunked", 7) == 0)
            reply->body = LOAD_PART_CHUNK_SIZE;
    } else if ((value = header_value(line, "connection")) != NULL) {
        reply->close = reply->close || strncasecmp(value, "close", 5) == 0;
    }
    return LOAD_MORE;
}

/* Another head follows one with a status below 200. */
static enum load_progress end_head(struct load_reply *reply) {
    if (reply->status < 200) {
        load_reply_reset(reply);
        return LOAD_MORE;
    }
    if (reply->status == 204 || reply->status == 304) {
        reply->body = LOAD_PART_BODY;
        reply->rest = 0;
    }
    reply->part = reply->body;
    reply->close = reply->close || reply->part == LOAD_PART_TO_END;
    return reply->part == LOAD_PART_BODY && reply->rest == 0 ? LOAD_WHOLE : LOAD_MORE;
}

/* Takes a line, without its end. */
static enum load_progress take_line(struct load_reply *reply, const char *line) {
    bool is_empty = line[0] == '\0';

    switch (reply->part) {
    case LOAD_PART_HEAD:
        if (reply->status == 0)
            return take_status(reply, line);
        return is_empty ? end_head(reply) : take_field(reply, line);
    case LOAD_PART_CHUNK_SIZE:
        if (!take_digits(line, 16, "; \t", &reply->rest))
            return LOAD_WRONG;
        reply->part = reply->rest > 0 ? LOAD_PART_CHUNK : LOAD_PART_TRAILER;
        reply->head_size = 0;
        return LOAD_MORE;
    case LOAD_PART_CHUNK_END:
        reply->part = LOAD_PART_CHUNK_SIZE;
        return is_empty ? LOAD_MORE : LOAD_WRONG;
    default: /* the trailer */
        return is_empty ? LOAD_WHOLE : LOAD_MORE;
    }
}

/* --- bytes --- */

/* Takes bytes up to the end of a line. Advances *at past them. */
static enum load_progress take_text(struct load_reply *reply, const char **at,
                                    const char *end) {
    const char *newline = memchr(*at, '\n', (size_t)(end - *at));
    size_t size = (size_t)((newline != NULL ? newline : end) - *at);

    reply->head_size += size + (newline != NULL);
    if (reply->head_size > LOAD_HEAD_MAX ||
        (reply->part == LOAD_PART_CHUNK_END && size > 0 && **at != '\r'))
        return LOAD_WRONG;
    memcpy(reply->line + reply->line_size, *at, size);
    reply->line_size += size;
    *at += size;
    if (newline == NULL)
        return LOAD_MORE;

    ++*at;
    size = reply->line_size;
    reply->line_size = 0;
    if (size > 0 && reply->line[size - 1] == '\r')
        size--;
    reply->line[size] = '\0';
    return take_line(reply, reply->line);
}

enum load_progress load_reply_take(struct load_reply *reply, const char *bytes,
                                   size_t size) {
    const char *end = bytes + size;
    enum load_progress progress = LOAD_MORE;

    while (bytes < end && progress == LOAD_MORE && reply->part != LOAD_PART_TO_END) {
        if (reply->part != LOAD_PART_BODY && reply->part != LOAD_PART_CHUNK) {
            progress = take_text(reply, &bytes, end);
            continue;
        }
        uint64_t left = (uint64_t)(end - bytes);
        uint64_t taken = left < reply->rest ? left : reply->rest;
        bytes += taken;
        reply->rest -= taken;
        if (reply->rest == 0 && reply->part == LOAD_PART_BODY)
            progress = LOAD_WHOLE;
        else if (reply->rest == 0)
            reply->part = LOAD_PART_CHUNK_END;
    }
    return progress == LOAD_WHOLE && bytes < end ? LOAD_WRONG : progress;
}
