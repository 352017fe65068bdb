/* SPDX-License-Identifier: Apache-2.0 */
#include <attnd/library.h>

const char *attn_version(void) {
    return ATTND_VERSION;
}
