/* SPDX-License-Identifier: Apache-2.0 */
/* ui.S: embeds the files of the page, compressed by gzip. The build makes them in the
 * folder that is searched. All architectures have these directives. */

    .macro embed symbol, file
    .balign 8
    .hidden \symbol
    .globl \symbol
\symbol:
    .8byte 9f - 8f
8:
    .incbin "\file"
9:
    .endm

    .section .rodata

    embed attnd_ui_html, "index.html.gz"
    embed attnd_ui_css, "ui.css.gz"
    embed attnd_ui_js, "ui.js.gz"

/* It has no branches, so it may be where these are checked. */
#ifdef __CET__
#include <cet.h>
#endif

    .section .note.GNU-stack, "", %progbits
