/* SPDX-License-Identifier: Apache-2.0 */
#include "http/routes.h"

#include <string.h>

static const struct route routes[] = {
    {"/v1/attention", "POST", true, attention_handle},
    {"/v1/models", "GET, HEAD", false, models_handle_list},
    {"/v1/models/", "GET, HEAD", false, models_handle_one},
    {"/v2/health/live", "GET, HEAD", false, health_handle_live},
    {"/v2/health/ready", "GET, HEAD", false, health_handle_ready},
};

/* Returns what follows the route's path, or NULL when `path` is another. */
static const char *match(const struct route *route, const char *path) {
    size_t size = strlen(route->path);
    if (strncmp(path, route->path, size) != 0)
        return NULL;
    bool takes_name = route->path[size - 1] == '/';
    return takes_name == (path[size] != '\0') ? path + size : NULL;
}

/* Whether `method` is one of the words of `allow`. */
static bool allows(const char *allow, const char *method) {
    size_t size = strlen(method);
    for (const char *word = allow; word != NULL; word = strchr(word, ' ')) {
        word += *word == ' ';
        if (strncmp(word, method, size) == 0 && (word[size] == ',' || word[size] == '\0'))
            return true;
    }
    return false;
}

const struct route *route_find(const char *path, const char *method,
                               const char **ret_rest, const char **ret_allow,
                               struct wire_problem *ret_problem) {
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        const char *rest = match(&routes[i], path);
        if (rest == NULL)
            continue;
        if (!allows(routes[i].allow, method)) {
            wire_problem_set(ret_problem, MHD_HTTP_METHOD_NOT_ALLOWED,
                             "Method not allowed", NULL, "%s takes %s, not %.20s", path,
                             routes[i].allow, method);
            *ret_allow = routes[i].allow;
            return NULL;
        }
        *ret_rest = rest;
        return &routes[i];
    }
    wire_problem_set(
        ret_problem, MHD_HTTP_NOT_FOUND, "Unknown route", NULL,
        "there is no %.200s; there are POST /v1/attention, GET /v1/models, GET "
        "/v1/models/NAME, GET /v2/health/live and GET /v2/health/ready",
        path);
    *ret_allow = NULL;
    return NULL;
}
