/* SPDX-License-Identifier: Apache-2.0 */
/* routes.h: the table of routes, and the functions that it refers to.
 *
 * Of those below, oip_* are in oip.c, page_* in page.c, models_*, health_* and openapi_*
 * in info.c, and the others in attention.c. */
#pragma once

#include "http/route.h"

extern const struct route_table routes_table;

/* route.check of POST /v1/attention, and of POST /v1/heads, whose reply is JSON: each
 * checks Content-Type (415) and Accept (406). */
route_step attention_check, heads_check;

/* route.check of the Open Inference Protocol: Content-Type is JSON, or JSON with binary
 * data after it, or missing; else 415. */
route_step oip_check;

/* route.check below POST /v2/repository: checks the same. The body is small, because the
 * HTTP thread reads it. */
route_step oip_check_short;

/* route.handle. The first two are of captures that are kept, too; oip_handle_change()
 * loads or unloads, and page_handle() has the three files of the page. */
route_step attention_handle, heads_handle, dot_product_handle;
route_step models_handle_list, models_handle_one, health_handle_live, health_handle_ready;
route_step oip_handle_server, oip_handle_model, oip_handle_ready, oip_handle_config;
route_step oip_handle_stats, oip_handle_all_stats, oip_handle_infer;
route_step oip_handle_index, oip_handle_change;
route_step page_handle, openapi_handle;
