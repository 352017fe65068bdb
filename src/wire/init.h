/* SPDX-License-Identifier: Apache-2.0 */
/* init.h: what reading requests needs from the process. */
#pragma once

#include <attnd/status.h>

/* Prepares the readers of JSON and of numbers: jansson's allocator and hash seed, and the
 * C locale. Call it once before anything else of this room, and before other threads run;
 * further calls do nothing. Returns ATTN_OK, or ATTN_E_NOMEM when the C library cannot
 * create the locale. */
attn_status wire_init(void);
