/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: the table of routes, and how a path and method are matched with it. */
#include "http/routes.h"

#include "http/handlers.h"
#include "models/requests.h"
#include "wire/oip/oip.h"

#include <string.h>

#define READS   "GET, HEAD"
#define MODEL   "/v2/models/*"
#define VERSION MODEL "/versions/*"

static const struct route routes[] = {
    {"/", READS, NULL, page_handle, ROUTE_IS_OPEN},
    {"/ui.css", READS, NULL, page_handle, ROUTE_IS_OPEN},
    {"/ui.js", READS, NULL, page_handle, ROUTE_IS_OPEN},
    {"/v1/attention", "POST", attention_check, attention_handle, ROUTE_INFERS},
    {"/v1/heads", "POST", heads_check, heads_handle, ROUTE_INFERS},
    {"/v1/models", READS, NULL, models_handle_list, ROUTE_NEEDS_KEY},
    {"/v1/models/", READS, NULL, models_handle_one, ROUTE_NEEDS_KEY},
    {"/v2", READS, NULL, oip_handle_server, ROUTE_NEEDS_KEY},
    {"/v2/health/live", READS, NULL, health_handle_live, ROUTE_IS_HEALTH},
    {"/v2/health/ready", READS, NULL, health_handle_ready, ROUTE_IS_HEALTH},
    {"/v2/models/stats", READS, NULL, oip_handle_all_stats, ROUTE_NEEDS_KEY},
    {MODEL, READS, NULL, oip_handle_model, ROUTE_NEEDS_KEY},
    {VERSION, READS, NULL, oip_handle_model, ROUTE_NEEDS_KEY},
    {MODEL "/ready", READS, NULL, oip_handle_ready, ROUTE_NEEDS_KEY},
    {VERSION "/ready", READS, NULL, oip_handle_ready, ROUTE_NEEDS_KEY},
    {MODEL "/config", READS, NULL, oip_handle_config, ROUTE_NEEDS_KEY},
    {VERSION "/config", READS, NULL, oip_handle_config, ROUTE_NEEDS_KEY},
    {MODEL "/stats", READS, NULL, oip_handle_stats, ROUTE_NEEDS_KEY},
    {VERSION "/stats", READS, NULL, oip_handle_stats, ROUTE_NEEDS_KEY},
    {MODEL "/infer", "POST", oip_check, oip_handle_infer, ROUTE_INFERS},
    {VERSION "/infer", "POST", oip_check, oip_handle_infer, ROUTE_INFERS},
    {"/v2/repository/index", "POST", oip_check_short, oip_handle_index, ROUTE_NEEDS_KEY},
    {"/v2/repository/models/*/load", "POST", oip_check_short, oip_handle_load,
     ROUTE_NEEDS_KEY},
    {"/v2/repository/models/*/unload", "POST", oip_check_short, oip_handle_unload,
     ROUTE_NEEDS_KEY},
    {"/openapi.json", READS, NULL, openapi_handle, ROUTE_NEEDS_KEY},
    {"/metrics", READS, NULL, metrics_handle, ROUTE_IS_METRICS},
};

#define NUM_ROUTES (sizeof routes / sizeof routes[0])
_Static_assert(NUM_ROUTES <= REQUEST_ROUTES_MAX, "REQUEST_ROUTES_MAX is too small");

/* Whether the address has the route. */
static bool is_at(const struct route *route, enum route_address address) {
    switch (route->access) {
    case ROUTE_IS_HEALTH:
        return true;
    case ROUTE_IS_METRICS:
        return address != ROUTE_AT_MAIN;
    case ROUTE_NEEDS_KEY:
    case ROUTE_INFERS:
    case ROUTE_IS_OPEN:
        break;
    }
    return address != ROUTE_AT_ADMIN;
}

/* Whether `path` is one of the route's. ret_words[ROUTE_WORDS_MAX] are then the words
 * that the route leaves open. */
static bool route_matches(const struct route *route, const char *path,
                          struct route_word *ret_words) {
    const char *pattern = route->path;
    size_t word = 0;

    memset(ret_words, 0, ROUTE_WORDS_MAX * sizeof *ret_words);
    for (; *pattern != '\0'; pattern++) {
        if (*pattern == '*') {
            size_t size = strcspn(path, "/");
            if (size == 0)
                return false;
            ret_words[word++] = (struct route_word){path, size};
            path += size;
        } else if (*path++ != *pattern) {
            return false;
        }
    }

    if (pattern[-1] != '/' || pattern - route->path == 1)
        return *path == '\0';
    ret_words[word] = (struct route_word){path, strlen(path)};
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

const struct route *route_find(const char *path, struct route_word *ret_words) {
    for (size_t i = 0; i < NUM_ROUTES; i++) {
        if (route_matches(&routes[i], path, ret_words))
            return &routes[i];
    }
    return NULL;
}

size_t route_index(const struct route *route) {
    return route != NULL ? (size_t)(route - routes) : REQUEST_ROUTES_MAX;
}

const struct route *route_at(size_t index) {
    return index < NUM_ROUTES ? &routes[index] : NULL;
}

/* Says that the address has no route for the path. Returns false. */
static bool set_unknown(enum route_address address, const char *path,
                        struct wire_problem *ret_problem) {
    if (address == ROUTE_AT_ADMIN)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                                "the admin address has no route %.200s; use "
                                "GET /metrics, GET /v2/health/live or "
                                "GET /v2/health/ready, or the address of --listen",
                                path);
    if (strcmp(path, "/metrics") == 0)
        return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                                "the metrics are at the address of --admin-listen");
    return wire_problem_set(ret_problem, WIRE_E_UNKNOWN_ROUTE, NULL,
                            "there is no route %.200s; use POST /v1/attention, "
                            "POST /v1/heads, GET /v1/models, GET /v1/models/NAME, "
                            "GET /v2/health/live, GET /v2/health/ready, "
                            "GET /openapi.json, the page at GET /, or the Open Inference "
                            "Protocol below GET /v2",
                            path);
}

bool route_check(const struct route *route, enum route_address address, const char *path,
                 const char *method, struct wire_problem *ret_problem) {
    if (route == NULL || !is_at(route, address))
        return set_unknown(address, path, ret_problem);
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
