/* SPDX-License-Identifier: Apache-2.0 */
/* heads.h: the analysis of heads in a call. */
#pragma once

#include "entry/call.h"

/* Describes the heads of a planned request, and of those that the caller's sums are of,
 * and makes the reply. Returns false with call->problem set. */
bool call_analyse_heads(struct call *call);
