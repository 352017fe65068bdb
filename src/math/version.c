/* SPDX-License-Identifier: Apache-2.0 */
#include <attnd/library.h>

const char *attnd_version(void) {
    return ATTND_VERSION;
}
