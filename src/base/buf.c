/* SPDX-License-Identifier: Apache-2.0 */
/* buf.c: a buffer that doubles its capacity. */
#include "base/buf.h"

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

attn_status buf_append(struct buf *buf, const void *data, size_t size) {
    attn_status status = buf_reserve(buf, size);
    if (status == ATTN_OK && size > 0) {
        memcpy(buf->data + buf->size, data, size);
        buf->size += size;
    }
    return status;
}

attn_status buf_append_text(struct buf *buf, const char *text) {
    return buf_append(buf, text, strlen(text));
}

char *buf_take(struct buf *buf, size_t *ret_size) {
    char *data = buf->data;
    *ret_size = buf->size;
    buf_init(buf, buf->max);
    return data;
}
