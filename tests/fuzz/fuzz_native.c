/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_native.c: any body is decoded to numbers that are all there, in the memory that
 * was foreseen, or refused with a problem that is JSON itself. */
#include "native_one.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fixture *fixture = native_fixture();
    struct wire_native_scan scan;
    char *body = malloc(size > 0 ? size : 1); /* so that a read past the end is seen */
    memcpy(body, data, size);
    arena_reset(&fixture->arena);
    bool decoded = wire_native_scan(body, size, &scan, &fixture->problem);
    if (decoded) {
        decoded = wire_native_decode(
            body, &scan, (const attn_model *const *)fixture->models, NUM_MODELS,
            &fixture->arena, &fixture->request, &fixture->problem);
        native_check(fixture->arena.used <= scan.decode_bytes,
                     "more memory than foreseen");
    }
    if (decoded)
        native_check_call(&fixture->request);
    else
        native_check_problem(&fixture->problem);
    free(body);
    return 0;
}
