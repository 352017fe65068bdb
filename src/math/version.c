/* SPDX-License-Identifier: Apache-2.0 */
/* version.c: the version of libattnd, which the build passes in. */
#include <attnd/library.h>

const char *attn_version(void) {
    return ATTND_VERSION;
}
