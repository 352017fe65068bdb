/* SPDX-License-Identifier: Apache-2.0 */
/* output.h: writes to a pipe, terminal, socket or file that others share, without waiting
 * for the reader. Their O_NONBLOCK is left as it is, because it would change for all
 * processes that share the descriptor. It also creates files, whole or not at all. */
#pragma once

#include <attnd/status.h>
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

/* Writes 1 to OUTPUT_BYTES_MAX bytes once `fd` has room, for which it waits `wait_ms` at
 * most. Returns how many were written, which may be fewer for what is not a pipe; or -1
 * with errno set, EAGAIN when there was no room. */
ssize_t output_write(int fd, const char *text, size_t size, int wait_ms);

/* Creates the file at `path` with `size` bytes. The name appears once all bytes are on
 * the disk; until then the file is called PATH.part, in the same folder. After a failure
 * neither is left.
 *
 * Errors, with one line that names the file: ATTN_E_VALUE when something has either name,
 * which is never replaced, or when the path is too long; ATTN_E_IO. */
attn_status output_create_file(const char *path, const char *bytes, size_t size,
                               attn_error *ret_error);

/* Checks that nothing has the name `path`, before long work for that file. Errors:
 * ATTN_E_VALUE, as above. */
attn_status output_check_new(const char *path, attn_error *ret_error);
