/* SPDX-License-Identifier: Apache-2.0 */
/* access.h: what is told of a request: a line of the log and a header. */
#pragma once

#include <stdbool.h>

struct exchange;

#define ACCESS_TIMING_HEADER "Server-Timing"
#define ACCESS_TIMING_MAX    256 /* bytes of its value, with the terminator */

/* Writes one line about a request that has ended and whose facts are complete: at
 * LOG_INFO, whatever is logged, with --access-log; else where LOG_DEBUG is. */
void access_log(const struct exchange *exchange);

/* Writes the value of Server-Timing: what each stage took in ms, and all of them so far.
 * Returns false when no worker had the request. */
bool access_format_timing(const struct exchange *exchange,
                          char ret_value[ACCESS_TIMING_MAX]);
