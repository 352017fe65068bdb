/* SPDX-License-Identifier: Apache-2.0 */
/* routes.h: which path does what. */
#ifndef ATTND_HTTP_ROUTES_H
#define ATTND_HTTP_ROUTES_H

#include "http/exchange.h"

struct route {
    const char *path;                          /* ends in '/' when a name follows */
    const char *allow;                         /* methods, as in the Allow header */
    bool takes_json;                           /* the body is kept and must be JSON */
    void (*handle)(struct exchange *exchange); /* called when the request is complete */
};

/* Finds the route of a path and method. Returns NULL with *ret_problem set (404 or 405)
 * when there is none; *ret_allow is then the methods that the path has, or NULL.
 * *ret_rest is what follows the route's path. */
const struct route *route_find(const char *path, const char *method,
                               const char **ret_rest, const char **ret_allow,
                               struct wire_problem *ret_problem);

/* The handlers, each in the file of its name. */
void attention_handle(struct exchange *exchange);
void models_handle_list(struct exchange *exchange);
void models_handle_one(struct exchange *exchange);
void health_handle_live(struct exchange *exchange);
void health_handle_ready(struct exchange *exchange);

#endif
