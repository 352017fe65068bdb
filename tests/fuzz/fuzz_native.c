/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_native.c: any body as the JSON of /v1/attention. It is decoded to numbers that are
 * all there, in the memory that was announced, or refused with a problem. */
#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fixture *fixture = fuzz_fixture();
    size_t reserved;
    char *body = fuzz_copy(data, size);
    arena_reset(&fixture->arena);

    bool decoded = fixture_read(fixture, (const attn_model *const *)fixture->models,
                                NUM_MODELS, &fixture->arena, body, size, &reserved);
    fuzz_check(fixture->arena.used <= reserved, "more memory than was reserved");
    if (decoded)
        fuzz_check_request(&fixture->request, true);
    else
        fuzz_check_problem(&fixture->problem, &wire_problem_format);
    free(body);
    return 0;
}
