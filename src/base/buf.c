/* SPDX-License-Identifier: Apache-2.0 */
/* buf.c: a buffer that doubles its capacity. */
#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUF_FIRST_CAPACITY 256 /* bytes */

void buf_init(struct buf *buf, size_t max) {
    *buf = (struct buf){.max = max};
}

void buf_deinit(struct buf *buf) {
    free(buf->data);
    buf_init(buf, buf->max);
}

attn_status buf_reserve(struct buf *buf, size_t more) {
    if (more > buf->max - buf->size)
        return ATTN_E_NOMEM;
    size_t needed = buf->size + more;
    if (needed <= buf->capacity)
        return ATTN_OK;

    size_t capacity =
        buf->capacity < BUF_FIRST_CAPACITY ? BUF_FIRST_CAPACITY : buf->capacity;
    while (capacity < needed)
        capacity = capacity > buf->max / 2 ? buf->max : capacity * 2;
    return buf_set_capacity(buf, capacity);
}

attn_status buf_set_capacity(struct buf *buf, size_t capacity) {
    char *data = realloc(buf->data, capacity);
    if (data == NULL)
        return ATTN_E_NOMEM;

    buf->data = data;
    buf->capacity = capacity;
    return ATTN_OK;
}

void buf_append(struct buf *buf, const void *data, size_t size) {
    if (buf->status != ATTN_OK || size == 0)
        return;
    buf->status = buf_reserve(buf, size);
    if (buf->status != ATTN_OK)
        return;
    memcpy(buf->data + buf->size, data, size);
    buf->size += size;
}

void buf_append_text(struct buf *buf, const char *text) {
    buf_append(buf, text, strlen(text));
}

void buf_append_format(struct buf *buf, const char *format, ...) {
    char text[BUF_FORMAT_MAX + 1];
    va_list args;

    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    assert(length >= 0 && (size_t)length < sizeof text);
    buf_append(buf, text, (size_t)length);
}

char *buf_take(struct buf *buf, size_t *ret_size) {
    char *data = buf->data;
    *ret_size = buf->size;
    buf_init(buf, buf->max);
    return data;
}

/* --- shared texts --- */

struct shared_text *shared_text_create(void (*print)(void *context, struct buf *text),
                                       void *context) {
    struct shared_text *shared = calloc(1, sizeof *shared);
    if (shared == NULL)
        return NULL;
    atomic_init(&shared->num_holders, 1);
    buf_init(&shared->text, SIZE_MAX);
    print(context, &shared->text);
    if (shared->text.status == ATTN_OK &&
        buf_set_capacity(&shared->text, shared->text.size) == ATTN_OK)
        return shared;
    shared_text_release(shared);
    return NULL;
}

struct shared_text *shared_text_hold(struct shared_text *text) {
    atomic_fetch_add(&text->num_holders, 1);
    return text;
}

void shared_text_release(struct shared_text *text) {
    if (text == NULL || atomic_fetch_sub(&text->num_holders, 1) > 1)
        return;
    buf_deinit(&text->text);
    free(text);
}
