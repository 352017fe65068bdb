/* SPDX-License-Identifier: Apache-2.0 */
/* openapi.S: embeds docs/openapi.json, which GET /openapi.json serves. OPENAPI_FILE, its
 * path in quotes, comes from the build. All architectures have these directives. */

    .section .rodata

    .hidden attnd_openapi
    .globl attnd_openapi
attnd_openapi:
    .incbin OPENAPI_FILE
attnd_openapi_end:

    .hidden attnd_openapi_size
    .globl attnd_openapi_size
    .balign 8
attnd_openapi_size:
    .8byte attnd_openapi_end - attnd_openapi

/* It has no branches, so it may be where these are checked. */
#ifdef __CET__
#include <cet.h>
#endif

    .section .note.GNU-stack, "", %progbits
