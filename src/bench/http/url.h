/* SPDX-License-Identifier: Apache-2.0 */
/* url.h: the address that attnd-bench http is given. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>

#define LOAD_HOST_MAX 255
#define LOAD_PATH_MAX 2047

/* http://HOST[:PORT][/PATH[?QUERY]], or unix:SOCKET, the path of a Unix socket. */
struct load_url {
    bool is_unix;
    char host[LOAD_HOST_MAX + 1];      /* without the brackets of IPv6; or the socket */
    char port[6];                      /* "80" when there is none; "" of a socket */
    char authority[LOAD_HOST_MAX + 9]; /* of the header Host */
    char path[LOAD_PATH_MAX + 1];      /* with the query; "/" when there is none */
};

/* Parses `text`. Error: ATTN_E_VALUE, with a line that says what to write instead. */
attn_status load_url_parse(const char *text, struct load_url *ret_url,
                           attn_error *ret_error);

/* Returns whether `path` can be sent as the target of a request: it begins with '/', and
 * has at most LOAD_PATH_MAX printable characters, no blank and no '#'. */
bool load_path_is_valid(const char *path);
