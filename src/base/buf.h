/* SPDX-License-Identifier: Apache-2.0 */
/* buf.h: a buffer of bytes that grows up to a mandatory maximum, the writer of texts, and
 * texts that several share.
 *
 * A function that writes a text returns nothing. The buffer keeps the first error, after
 * which nothing is appended; the caller that made the buffer looks once, at the end. */
#pragma once

#include <attnd/status.h>
#include <stdatomic.h>
#include <stddef.h>

#define BUF_FORMAT_MAX 511

/* Owned by one thread at a time. `data` is heap memory, or NULL until something is
 * added. */
struct buf {
    char *data;
    size_t size;     /* bytes in use */
    size_t capacity; /* bytes allocated */
    size_t max;      /* bytes that it may hold, at most */
    /* ATTN_OK, or ATTN_E_NOMEM: memory was short, or the maximum would be exceeded. */
    attn_status status;
};

/* Makes an empty buffer of at most `max` bytes; allocates nothing. */
void buf_init(struct buf *buf, size_t max);

/* Frees the memory; the buffer is then as after buf_init(). */
void buf_deinit(struct buf *buf);

/* Makes room for `more` bytes past `size`. Returns ATTN_OK, or ATTN_E_NOMEM with the
 * buffer unchanged, its status too, when memory is short or the maximum would be
 * exceeded. */
attn_status buf_reserve(struct buf *buf, size_t more);

/* Makes the capacity `capacity` bytes, neither less than `size` nor more than the
 * maximum. Returns ATTN_OK, or ATTN_E_NOMEM with the buffer unchanged. */
attn_status buf_set_capacity(struct buf *buf, size_t capacity);

/* Append `size` bytes, a string without its terminator, or formatted text of at most
 * BUF_FORMAT_MAX bytes. They do nothing when buf->status is not ATTN_OK, and set it. */
void buf_append(struct buf *buf, const void *data, size_t size);
void buf_append_text(struct buf *buf, const char *text);
__attribute__((format(printf, 2, 3))) void buf_append_format(struct buf *buf,
                                                             const char *format, ...);

/* Hands the bytes over: the caller frees them with free(). The buffer is empty
 * afterwards. */
char *buf_take(struct buf *buf, size_t *ret_size);

/* A text that several hold, on any threads. It does not change once it is printed. Its
 * last holder frees it. */
struct shared_text {
    struct buf text;
    atomic_size_t num_holders;
};

/* Returns what print() has printed, of which the caller is a holder; NULL when memory is
 * short. */
struct shared_text *shared_text_create(void (*print)(void *context, struct buf *text),
                                       void *context);

/* Adds a holder. Returns the text. */
struct shared_text *shared_text_hold(struct shared_text *text);

/* Accepts NULL. */
void shared_text_release(struct shared_text *text);
