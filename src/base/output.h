/* SPDX-License-Identifier: Apache-2.0 */
/* output.h: writes to a pipe, terminal, socket or file that others share, without waiting
 * for the reader. Their O_NONBLOCK is left as it is, because it would change for all
 * processes that share the descriptor. */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

/* The most bytes of one write; a pipe takes them all or none. */
#define OUTPUT_BYTES_MAX PIPE_BUF

/* Returns a descriptor that never blocks, for the pipe or terminal behind `fd`: it is
 * opened anew, so its flags are its own. Returns `fd` itself for others, and where the
 * system refuses. Then output_write() still does not wait, unless another process fills
 * a pipe between its two system calls. The caller closes what is not `fd`. */
int output_open(int fd);

/* Writes 1 to OUTPUT_BYTES_MAX bytes if `fd` has room. Returns how many were written,
 * which may be fewer for what is not a pipe; or -1 with errno set, EAGAIN when there was
 * no room. */
ssize_t output_write(int fd, const char *text, size_t size);
