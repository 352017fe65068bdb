/* SPDX-License-Identifier: Apache-2.0 */
/* job.h: runs a request for attention, or an analysis of heads, on workers. */
#pragma once

struct exchange;
struct exchange_codec;

/* On the HTTP thread, when the request is complete: suspends the connection and submits
 * the request to the workers. A full queue makes the reply a 503 instead. */
void job_submit(struct exchange *exchange, const struct exchange_codec *codec);
