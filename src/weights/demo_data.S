/* SPDX-License-Identifier: Apache-2.0 */
/* demo_data.S: the files of the built-in models. JOURNEY_FILE, D2L_FILE,
 * PATTERNS_FILE and STACKED_FILE, paths in quotes, come from the build. Only directives
 * that all architectures have. */

    .section .rodata

    .macro file symbol, path
    .hidden \symbol
    .globl \symbol
    .balign 8
\symbol:
    .incbin "\path"
\symbol\()_end:

    .hidden \symbol\()_size
    .globl \symbol\()_size
    .balign 8
\symbol\()_size:
    .8byte \symbol\()_end - \symbol
    .endm

    file attnd_demo_journey, JOURNEY_FILE
    file attnd_demo_d2l, D2L_FILE
    file attnd_demo_patterns, PATTERNS_FILE
    file attnd_demo_stacked, STACKED_FILE

/* It has no branches, so it may be where these are checked. */
#ifdef __CET__
#include <cet.h>
#endif

    .section .note.GNU-stack, "", %progbits
