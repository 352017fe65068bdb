/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_given.c: any body as a request of /v1/attention/dot-product: safetensors, or JSON
 * when it begins with '{'. It is decoded to numbers that are all there, in the memory
 * that was reserved, or refused with a problem. What is decoded can be planned. */
#include "check.h"
#include "wire/safetensors/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fixture *fixture = fuzz_fixture();
    size_t reserved = 0;
    char *body = fuzz_copy(data, size);
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .arena = &fixture->arena,
                                     .reserve = fuzz_reserve,
                                     .context = &reserved};
    bool text = size > 0 && data[0] == '{';
    wire_read *read = text ? wire_native_read : wire_safetensors_read;
    arena_reset(&fixture->arena);

    if (read(&input, &fixture->request, &fixture->problem)) {
        const attn_request *batch = &fixture->request.batch;
        attn_sizes sizes;
        fuzz_check_request(&fixture->request, text);
        attn_status status = attn_plan(fixture->request.model, batch, &sizes, NULL);
        fuzz_check(status == ATTN_OK || status == ATTN_E_OVERFLOW,
                   "a request that cannot be planned");
    } else {
        fuzz_check_problem(&fixture->problem, &wire_problem_format);
    }
    fuzz_check(fixture->arena.used <= reserved, "more memory than was reserved");
    free(body);
    return 0;
}
