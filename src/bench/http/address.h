/* SPDX-License-Identifier: Apache-2.0 */
/* address.h: where to connect, and from where. */
#pragma once

#include "bench/http/loop.h"

/* Finds the address of `url` by connecting to it once, from `source` unless that is NULL:
 * an address of this machine. Errors, with one line: ATTN_E_VALUE for the source,
 * ATTN_E_IO when no server listens. */
attn_status load_address_find(const struct load_url *url, const char *source,
                              struct load_address *ret_address, attn_error *ret_error);
