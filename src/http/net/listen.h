/* SPDX-License-Identifier: Apache-2.0 */
/* listen.h: from HOST:PORT or unix:PATH to bound sockets. */
#pragma once

#include <attnd/status.h>
#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/un.h>

#define LISTEN_TEXT_MAX (NI_MAXHOST + 16) /* bytes of a text, with the terminator */

/* Where sockets listen. */
struct listen_address {
    char text[LISTEN_TEXT_MAX]; /* HOST:PORT with the port that was found, or unix:PATH */
    int lock_fd;      /* of a Unix socket: its lock, until listen_remove(); else -1 */
    struct stat file; /* of a Unix socket: what was made at its path */
};

/* Checks that `listen`, the value of `option`, is HOST:PORT or
 * unix:PATH[,mode=MODE][,group=NAME], without binding it. Returns ATTN_E_VALUE, with one
 * line, when it is not, or the group is unknown. One thread at a time may call it. */
attn_status listen_check(const char *option, const char *listen, attn_error *ret_error);

bool listen_is_unix(const char *listen);

/* Splits HOST:PORT; an IPv6 address loses its brackets. Returns ATTN_E_VALUE, with one
 * line, when `listen`, the value of `option`, is something else. */
attn_status listen_split(const char *option, const char *listen,
                         char ret_host[static NI_MAXHOST],
                         char ret_port[static NI_MAXSERV], attn_error *ret_error);

/* Finds the addresses of HOST:PORT, which the caller frees. Errors, with one line:
 * ATTN_E_VALUE as listen_split(), or for an unknown host. */
attn_status listen_find_addresses(const char *option, const char *listen,
                                  struct addrinfo **ret_addresses, attn_error *ret_error);

/* Returns the address of a Unix socket. listen_check() accepts `listen`. */
void listen_get_path(const char *listen, struct sockaddr_un *ret_address);

/* Checks the value of `option` as listen_check() does, and that its host is known. Finds
 * whether only this machine can reach all its addresses. */
attn_status listen_find_loopback(const char *option, const char *listen,
                                 bool *ret_is_loopback, attn_error *ret_error);

/* Opens `count` non-blocking sockets that listen on one address, so that each thread
 * accepts from its own; those of a Unix socket share it. So do those of `inherited`, a
 * socket that listens there already, whose file is not the caller's; -1: none. The caller
 * closes ret_fds [count], and calls listen_remove() first. Errors, with one line:
 * ATTN_E_VALUE as listen_check() or for an unknown host, ATTN_E_IO; then nothing is left
 * open, and no file. One thread at a time may call it; a Unix socket changes the umask of
 * the process for a moment. */
attn_status listen_open(const char *option, const char *listen, int inherited,
                        size_t count, int *ret_fds, struct listen_address *ret_address,
                        attn_error *ret_error);

/* Removes the file of a Unix socket, so that another process can listen there; what
 * another one has made there since stays. The socket must still be open: until it is
 * closed, it accepts whom the kernel has connected. Does nothing for other addresses, and
 * the second time. */
void listen_remove(struct listen_address *address);
