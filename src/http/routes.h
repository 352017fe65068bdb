/* SPDX-License-Identifier: Apache-2.0 */
/* routes.h: which path does what. */
#ifndef ATTND_HTTP_ROUTES_H
#define ATTND_HTTP_ROUTES_H

#include "http/exchange.h"

enum route_body {
    ROUTE_BODY_NONE,   /* one that comes is dropped */
    ROUTE_BODY_NATIVE, /* kept; attention_check_media() */
    ROUTE_BODY_OIP     /* kept; JSON, binary data after JSON, or without Content-Type */
};

struct route {
    /* '*' stands for one word between slashes; when it ends in '/' all that follows is
     * one word, which must not be empty. */
    const char *path;
    const char *allow; /* methods, as in the Allow header */
    enum route_body body;
    void (*handle)(struct exchange *exchange); /* called when the request is complete */
};

/* Finds the route of a path and method. Returns NULL with *ret_problem set (404 or 405)
 * when there is none; *ret_allow is then the methods that the path has, or NULL.
 * ret_words[ROUTE_WORDS_MOST] are the words of the path that the route leaves open; start
 * is NULL past the last. They point into `path`. */
const struct route *route_find(const char *path, const char *method,
                               struct route_word *ret_words, const char **ret_allow,
                               struct wire_problem *ret_problem);

/* How errors of requests for this path are told, whether there is such a route or not. */
const struct wire_error_form *route_errors(const char *path);

/* Checks Content-Type and Accept of POST /v1/attention. Returns false with *ret_problem
 * set: 415 or 406. */
bool attention_check_media(struct exchange *exchange, struct wire_problem *ret_problem);

/* The handlers, each in the file of its name. */
void attention_handle(struct exchange *exchange);
void models_handle_list(struct exchange *exchange);
void models_handle_one(struct exchange *exchange);
void health_handle_live(struct exchange *exchange);
void health_handle_ready(struct exchange *exchange);
void oip_handle_server(struct exchange *exchange);
void oip_handle_model(struct exchange *exchange);
void oip_handle_ready(struct exchange *exchange);
void oip_handle_config(struct exchange *exchange);
void oip_handle_stats(struct exchange *exchange);
void oip_handle_all_stats(struct exchange *exchange);
void oip_handle_infer(struct exchange *exchange);
void oip_handle_index(struct exchange *exchange);
void openapi_handle(struct exchange *exchange);

#endif
