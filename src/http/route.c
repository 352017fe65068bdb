/* SPDX-License-Identifier: Apache-2.0 */
/* route.c: how a path and a method are matched with a table of routes. */
#include "http/route.h"

#include "wire/oip/oip.h"

#include <stdio.h>
#include <string.h>

/* Whether the address has the route. */
static bool is_at(const struct route *route, enum route_address address) {
    if (route->access & ROUTE_IS_METRICS)
        return address != ROUTE_AT_MAIN;
    return address != ROUTE_AT_ADMIN || route->access & ROUTE_IS_HEALTH;
}

/* Whether `path` is one of the route's. ret_segments[ROUTE_SEGMENTS_MAX] are then the
 * segments that the route leaves open. */
static bool route_matches(const struct route *route, const char *path,
                          struct route_segment *ret_segments) {
    const char *pattern = route->path;
    size_t count = 0;

    memset(ret_segments, 0, ROUTE_SEGMENTS_MAX * sizeof *ret_segments);
    for (; *pattern != '\0'; pattern++) {
        if (*pattern == '*') {
            size_t size = strcspn(path, "/");
            if (size == 0)
                return false;
            ret_segments[count++] = (struct route_segment){path, size};
            path += size;
        } else if (*path++ != *pattern) {
            return false;
        }
    }

    if (pattern[-1] != '/' || pattern - route->path == 1)
        return *path == '\0';
    ret_segments[count] = (struct route_segment){path, strlen(path)};
    return *path != '\0';
}

/* Whether `method` is one of the words of `allow`. */
static bool allows_method(const char *allow, const char *method) {
    size_t size = strlen(method);
    for (const char *word = allow; word != NULL; word = strchr(word, ' ')) {
        word += *word == ' ';
        if (strncmp(word, method, size) == 0 && (word[size] == ',' || word[size] == '\0'))
            return true;
    }
    return false;
}

const struct route *route_find(const struct route_table *table, const char *path,
                               struct route_segment *ret_segments) {
    for (size_t i = 0; i < table->count; i++) {
        if (route_matches(&table->routes[i], path, ret_segments))
            return &table->routes[i];
    }
    return NULL;
}

/* Whether an error about an unknown path lists the route: all that the admin address has,
 * elsewhere those of /v1 that compute. */
static bool is_in_error(const struct route *route, enum route_address address) {
    if (address == ROUTE_AT_ADMIN)
        return is_at(route, address);
    return route->access & ROUTE_INFERS && strncmp(route->path, "/v1/", 4) == 0;
}

/* Writes the routes that the error lists, each with a comma: "GET /v2/health/live, ". */
static void list_routes(const struct route_table *table, enum route_address address,
                        char *ret_text, size_t size) {
    size_t used = 0;

    ret_text[0] = '\0';
    for (size_t i = 0; i < table->count && used < size; i++) {
        const struct route *route = &table->routes[i];
        const char *open = strchr(route->path, '*');
        size_t known = open != NULL ? (size_t)(open - route->path) : strlen(route->path);
        if (is_in_error(route, address))
            used += (size_t)snprintf(ret_text + used, size - used, "%.*s %.*s%s%s, ",
                                     (int)strcspn(route->allow, ","), route->allow,
                                     (int)known, route->path, open != NULL ? "NAME" : "",
                                     open != NULL ? open + 1 : "");
    }
}

/* Says that the address has no route for the path. Returns false. */
static bool set_unknown(const struct route_table *table, enum route_address address,
                        const char *path, struct wire_problem *ret_problem) {
    char listed[256];
    const char *end = path + strlen(path);

    list_routes(table, address, listed, sizeof listed);
    if (address == ROUTE_AT_ADMIN)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                                "the admin address has no route %.200s; use %sor the "
                                "address of --listen",
                                path, listed);
    if (strcmp(path, "/metrics") == 0)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                                "the metrics are at the address of --admin-listen");
    return wire_problem_set(
        ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
        "there is no route %.200s%s; use %sthe page at GET /, or another of "
        "GET /openapi.json",
        path, end > path && end[-1] == '/' ? ", and only / ends in a slash" : "", listed);
}

bool route_check(const struct route_table *table, const struct route *route,
                 enum route_address address, const char *path, const char *method,
                 struct wire_problem *ret_problem) {
    if (route == NULL || !is_at(route, address))
        return set_unknown(table, address, path, ret_problem);
    if (allows_method(route->allow, method))
        return true;
    return wire_problem_set(ret_problem, WIRE_E_METHOD_NOT_ALLOWED, NULL,
                            "%.20s is not allowed here; %.200s allows %s", method, path,
                            route->allow);
}

const struct wire_error_format *route_errors(const char *path) {
    bool is_oip = strncmp(path, "/v2", 3) == 0 && (path[3] == '/' || path[3] == '\0');
    return is_oip ? &wire_oip_error_format : &wire_problem_format;
}
