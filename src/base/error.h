/* SPDX-License-Identifier: Apache-2.0 */
/* error.h: fills an attn_error, and what the wording of errors needs. */
#pragma once

#include <attnd/status.h>
#include <stddef.h>

/* Writes the formatted line to ret_error unless that is NULL. Returns `status`, so that a
 * failing function ends in `return error_set(...)`. Bytes that are not printable ASCII,
 * which a hostile file may contain, become '?'. A line that is too long is cut. */
__attribute__((format(printf, 3, 4))) attn_status
error_set(attn_error *ret_error, attn_status status, const char *format, ...);

/* For what is read piece by piece and looked at once, at the end: the same where `error`
 * has no error yet, which its status tells; else keeps the one that it has. */
#define error_keep(error, ...)                                                           \
    ((error)->status == ATTN_OK ? error_set((error), __VA_ARGS__) : (error)->status)

/* What helps where pthread_create() fails. */
#define NO_THREAD_LEFT                                                                   \
    "no thread is left; raise the limit of processes (ulimit -u, TasksMax= of systemd, " \
    "--pids-limit of containers)"

enum { DIVISORS_TEXT_SIZE = 96 };

/* Writes what divides `number`: "1, 2, 4", as many as there is room for. */
void divisors_print(size_t number, char ret_text[DIVISORS_TEXT_SIZE]);

/* Returns the ending of a noun of which there are `count`. */
static inline const char *plural_of(size_t count) {
    return count == 1 ? "" : "s";
}
