/* SPDX-License-Identifier: Apache-2.0 */
/* routes.c: the table of routes. */
#include "http/routes.h"

#include "http/captures/captures.h"
#include "http/metrics/metrics.h"

#define READS   "GET, HEAD"
#define KEPT    READS ", PUT, DELETE"
#define MODEL   "/v2/models/*"
#define VERSION MODEL "/versions/*"

static const struct route routes[] = {
    {"/", READS, NULL, page_handle, ROUTE_IS_OPEN},
    {"/ui.css", READS, NULL, page_handle, ROUTE_IS_OPEN},
    {"/ui.js", READS, NULL, page_handle, ROUTE_IS_OPEN},
    {"/v1/attention", "POST", attention_check, attention_handle, ROUTE_INFERS},
    {"/v1/attention/dot-product", "POST", attention_check, dot_product_handle,
     ROUTE_INFERS},
    {"/v1/captures", READS, NULL, captures_handle_list, ROUTE_NEEDS_KEY},
    {"/v1/captures/*", KEPT, NULL, captures_handle_one, ROUTE_OF_CAPTURE},
    {"/v1/captures/*/attention", "POST", attention_check, attention_handle,
     ROUTE_INFERS | ROUTE_OF_CAPTURE},
    {"/v1/captures/*/heads", "POST", heads_check, heads_handle,
     ROUTE_INFERS | ROUTE_OF_CAPTURE},
    {"/v1/heads", "POST", heads_check, heads_handle, ROUTE_INFERS},
    {"/v1/models", READS, NULL, models_handle_list, ROUTE_NEEDS_KEY},
    {"/v1/models/", READS, NULL, models_handle_one, ROUTE_NEEDS_KEY},
    {"/v2", READS, NULL, oip_handle_server, ROUTE_NEEDS_KEY},
    {"/v2/health/live", READS, NULL, health_handle_live, ROUTE_IS_OPEN | ROUTE_IS_HEALTH},
    {"/v2/health/ready", READS, NULL, health_handle_ready,
     ROUTE_IS_OPEN | ROUTE_IS_HEALTH},
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
    {"/v2/repository/models/*/load", "POST", oip_check_short, oip_handle_change,
     ROUTE_NEEDS_KEY},
    {"/v2/repository/models/*/unload", "POST", oip_check_short, oip_handle_change,
     ROUTE_NEEDS_KEY},
    {"/openapi.json", READS, NULL, openapi_handle, ROUTE_NEEDS_KEY},
    {"/metrics", READS, NULL, metrics_handle, ROUTE_IS_METRICS},
};

#define NUM_ROUTES (sizeof routes / sizeof routes[0])
_Static_assert(NUM_ROUTES <= REQUEST_ROUTES_MAX, "REQUEST_ROUTES_MAX is too small");

const struct route_table routes_table = {routes, NUM_ROUTES};
