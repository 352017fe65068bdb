/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c: sets a fault. */
#include "captures/fault.h"

#include <stdio.h>

bool capture_fail(struct capture_fault *fault, enum capture_error error,
                  const char *field) {
    fault->error = error;
    snprintf(fault->field, sizeof fault->field, "%s", field != NULL ? field : "");
    return false;
}
