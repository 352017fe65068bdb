/* SPDX-License-Identifier: Apache-2.0 */
/* target.h: the server that is loaded, and from where. */
#pragma once

#include "http/net/listen.h"

#include <attnd/status.h>
#include <stdbool.h>
#include <sys/socket.h>

#define LOAD_PATH_MAX 2047

struct load_target {
    char listen[LISTEN_TEXT_MAX]; /* HOST:PORT or unix:PATH */
    const char *path;             /* with the query; borrowed from the URL */
    struct sockaddr_storage to, from;
    socklen_t to_size, from_size; /* `from` is used when from_size > 0 */
};

/* Splits [http://]HOST:PORT[/PATH[?QUERY]], or unix:SOCKET, which has the path "/". The
 * target borrows `url`. Error: ATTN_E_VALUE, with a line that says what to write. */
attn_status load_target_parse(const char *url, struct load_target *ret_target,
                              attn_error *ret_error);

/* Finds the address of a target by connecting to it once, from `source` unless that is
 * NULL: an address of this machine. Errors, with one line: ATTN_E_VALUE for the source,
 * ATTN_E_IO when no server listens. */
attn_status load_target_find(struct load_target *target, const char *source,
                             attn_error *ret_error);

/* Returns whether `path` can be sent as the target of a request: it begins with '/', and
 * has at most LOAD_PATH_MAX printable characters, no blank and no '#'. */
bool load_path_is_valid(const char *path);
