/* SPDX-License-Identifier: Apache-2.0 */
/* route.h: which handler serves a path, by a table that routes.c has. */
#pragma once

#include "wire/problem.h"

#include <stdbool.h>
#include <stddef.h>

struct exchange;

#define ROUTE_SEGMENTS_MAX 2

/* A segment of the path, between its slashes; points into it. */
struct route_segment {
    const char *start;
    size_t size;
};

/* Where and for whom a route is. Where there are keys, one that is not open needs one. */
enum route_access {
    ROUTE_NEEDS_KEY = 0,
    ROUTE_INFERS = 1,     /* a worker computes the reply */
    ROUTE_OF_CAPTURE = 2, /* the first open segment names a capture and not a model */
    ROUTE_IS_OPEN = 4,
    ROUTE_IS_HEALTH = 8,  /* at the admin address too */
    ROUTE_IS_METRICS = 16 /* at the admin address alone, when there is one */
};

/* The address at which a request arrives. */
enum route_address {
    ROUTE_AT_ONLY, /* there is no other */
    ROUTE_AT_MAIN, /* there is an admin address too */
    ROUTE_AT_ADMIN /* it has no models and needs no keys */
};

/* A function of a route. Returns false with *ret_problem set, which becomes the reply. */
typedef bool route_step(struct exchange *exchange, struct wire_problem *ret_problem);

struct route {
    /* '*' means any segment. When a path longer than "/" ends in '/', all that follows is
     * one segment. Segments are not empty. */
    const char *path;
    const char *allow; /* methods, as in the Allow header */
    /* Checks the headers of a request whose body is kept, and may lower
     * exchange->body.max. NULL: the route needs no body, and discards what is sent. */
    route_step *check;
    /* Called when the request is complete: makes the reply, or submits the exchange to a
     * worker or to the thread that loads models. */
    route_step *handle;
    unsigned access; /* sum of enum route_access */
};

struct route_table {
    const struct route *routes; /* [count] */
    size_t count;
};

/* Finds the route of a path, or NULL. ret_segments[ROUTE_SEGMENTS_MAX] are the segments
 * of the path that the route leaves open; `start` is NULL past the last. */
const struct route *route_find(const struct route_table *table, const char *path,
                               struct route_segment *ret_segments);

/* Whether the route that was found for `path` is at the address and has the method.
 * Returns false with *ret_problem set when it does not have it (405), and when it is not
 * there or `route` is NULL (404, which lists routes of the table). */
bool route_check(const struct route_table *table, const struct route *route,
                 enum route_address address, const char *path, const char *method,
                 struct wire_problem *ret_problem);

/* Returns how errors are written for requests of this path, which need not be a
 * route's. */
const struct wire_error_format *route_errors(const char *path);
