/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_oip.c: any body as a request of the Open Inference Protocol, all of it JSON. */
#include "oip_one.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    oip_try(data, size, WIRE_NO_SIZE);
    return 0;
}
