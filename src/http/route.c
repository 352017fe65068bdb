/* SPDX-License-Identifier: Apache-2.0 */
/* route.c: how a path and a method are matched with a table of routes. */
#include "http/route.h"

#include "models/stats.h"
#include "wire/oip/oip.h"

#include <stdio.h>
#include <string.h>

#define PATH_SHOWN 60 /* bytes of a path without a route */

/* Whether the address has the route. */
static bool is_at(const struct route *route, enum route_address address) {
    switch (route->access) {
    case ROUTE_IS_HEALTH:
        return true;
    case ROUTE_IS_METRICS:
        return address != ROUTE_AT_MAIN;
    case ROUTE_NEEDS_KEY:
    case ROUTE_INFERS:
    case ROUTE_OF_CAPTURE:
    case ROUTE_INFERS_CAPTURE:
    case ROUTE_IS_OPEN:
        break;
    }
    return address != ROUTE_AT_ADMIN;
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

/* Lists the routes of an address: the table's, but for the page, and the Open Inference
 * Protocol but for its health. */
static void list_routes(const struct route_table *table, enum route_address address,
                        bool captures, char *text, size_t size) {
    for (size_t i = 0, used = 0; i < table->count && used < size; i++) {
        const struct route *route = &table->routes[i];
        const char *path = route->path, *star = strchr(path, '*');
        bool of_captures = strncmp(path, "/v1/captures", strlen("/v1/captures")) == 0;
        int head = (int)(star != NULL ? (size_t)(star - path) : strlen(path));

        if (!is_at(route, address) || strlen(path) < 3 || strncmp(path, "/ui", 3) == 0 ||
            (strncmp(path, "/v2", 3) == 0 && route->access != ROUTE_IS_HEALTH) ||
            (of_captures && !captures))
            continue;
        used += (size_t)snprintf(
            text + used, size - used, "%s%.*s %.*s%s%s", used > 0 ? ", " : "",
            (int)strcspn(route->allow, ","),
            strstr(route->allow, "PUT") != NULL ? "PUT," : route->allow, head, path,
            star != NULL || path[head - 1] == '/' ? "NAME" : "",
            star != NULL ? star + 1 : "");
    }
}

/* Says that the address has no route for the path. Returns false. */
static bool set_unknown(const struct route_table *table, enum route_address address,
                        bool captures, const char *path,
                        struct wire_problem *ret_problem) {
    struct route_segment segments[ROUTE_SEGMENTS_MAX];
    char list[320] = "", shorter[PATH_SHOWN + 1] = "";
    size_t size = strlen(path);

    if (size <= PATH_SHOWN && size > 1 && path[size - 1] == '/')
        memcpy(shorter, path, size - 1);
    if (route_find(table, shorter, segments) != NULL)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                                "there is no route %s; use %s, without the slash", path,
                                shorter);
    if (address == ROUTE_AT_MAIN && strcmp(path, "/metrics") == 0)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                                "the metrics are at the address of --admin-listen");
    list_routes(table, address, captures, list, sizeof list);
    return wire_problem_set(
        ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL, "%s has no route %.*s; use %s%s",
        address == ROUTE_AT_ADMIN ? "the admin address" : "attnd", PATH_SHOWN, path, list,
        address == ROUTE_AT_ADMIN
            ? ", or the address of --listen"
            : ", the page at GET /, or the Open Inference Protocol below GET /v2");
}

bool route_check(const struct route_table *table, const struct route *route,
                 enum route_address address, bool captures, const char *path,
                 const char *method, struct wire_problem *ret_problem) {
    if (route == NULL || !is_at(route, address))
        return set_unknown(table, address, captures, path, ret_problem);
    if (allows_method(route->allow, method))
        return true;
    return wire_problem_set(ret_problem, WIRE_E_METHOD_NOT_ALLOWED, NULL,
                            "%.20s is not allowed here; %.200s allows %s", method, path,
                            route->allow);
}

bool route_is_open(const struct route *route) {
    return route != NULL &&
           (route->access == ROUTE_IS_OPEN || route->access == ROUTE_IS_HEALTH);
}

const struct wire_error_format *route_errors(const char *path) {
    bool is_oip = strncmp(path, "/v2", 3) == 0 && (path[3] == '/' || path[3] == '\0');
    return is_oip ? &wire_oip_error_format : &wire_problem_format;
}
