/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c: any body as safetensors. It is decoded to numbers that are all
 * there, in the memory that was reserved, or refused with a problem. */
#include "check.h"
#include "wire/safetensors/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fixture *fixture = fuzz_fixture();
    size_t reserved = 0;
    char *body = fuzz_copy(data, size);
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .models = (const attn_model *const *)fixture->models,
                                     .num_models = NUM_MODELS,
                                     .arena = &fixture->arena,
                                     .reserve = fuzz_reserve,
                                     .context = &reserved};
    arena_reset(&fixture->arena);

    if (wire_safetensors_read(&input, &fixture->request, &fixture->problem))
        fuzz_check_request(&fixture->request, false);
    else
        fuzz_check_problem(&fixture->problem, &wire_problem_format);
    fuzz_check(fixture->arena.used <= reserved, "more memory than was reserved");
    free(body);
    return 0;
}
