/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_tensor.c: any text is read as a tensor in the same way as by the oracle. */
#include "fuzz.h"
#include "tensor_oracle.h"

#include "safetensors/parse.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct arena arenas[2];
    bool accepted;

    parse_json_init();
    arenas[0].keep = arenas[1].keep = 1 << 20;
    const char *wrong = oracle_check((const char *)data, size, arenas, &accepted);
    if (wrong != NULL) {
        fprintf(stderr, "%s\n", wrong);
        abort();
    }
    return 0;
}
