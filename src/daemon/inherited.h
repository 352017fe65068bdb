/* SPDX-License-Identifier: Apache-2.0 */
/* inherited.h: sockets that a service manager has opened, which listen already. They stay
 * open while attnd restarts, so that nobody is refused meanwhile: the protocol of
 * sd_listen_fds(3). */
#pragma once

#include <attnd/status.h>
#include <stddef.h>

/* Finds for each of `listens` [count], values of --listen that listen_check() accepts,
 * the socket of LISTEN_FDS that is bound to its address. ret_fds [count] is a descriptor
 * that the caller closes, or -1. Returns ATTN_E_VALUE, with one line, when a socket is of
 * none of them. Call it once, while the process has one thread. */
attn_status inherited_find(char *const *listens, size_t count, int *ret_fds,
                           attn_error *ret_error);
