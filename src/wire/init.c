/* SPDX-License-Identifier: Apache-2.0 */
/* init.c: initialises the rooms inside wire that have process-wide state. */
#include "wire/init.h"

#include "safetensors/parse.h"
#include "wire/decimal/read.h"

attn_status wire_init(void) {
    parse_json_init();
    return wire_floats_init() ? ATTN_OK : ATTN_E_NOMEM;
}
