/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c: any body, read as safetensors, gives a call whose numbers are all
 * there, in the memory that was asked for, or a problem that is JSON itself. */
#include "native_one.h"
#include "wire/safetensors/safetensors.h"

/* wire_input.reserve */
static bool reserve(void *context, size_t bytes, struct wire_problem *ret_problem) {
    size_t *reserved = context;
    (void)ret_problem;
    *reserved += bytes;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fixture *fixture = native_fixture();
    size_t reserved = 0;
    char *body = malloc(size > 0 ? size : 1); /* so that a read past the end is seen */
    memcpy(body, data, size);
    arena_reset(&fixture->arena);
    const struct wire_input input = {.body = body,
                                     .size = size,
                                     .json_size = WIRE_NO_SIZE,
                                     .models = (const attn_model *const *)fixture->models,
                                     .num_models = NUM_MODELS,
                                     .arena = &fixture->arena,
                                     .reserve = reserve,
                                     .context = &reserved};
    if (wire_safetensors_read(&input, &fixture->request, &fixture->problem))
        native_check_call(&fixture->request);
    else
        native_check_problem(&fixture->problem);
    native_check(fixture->arena.used <= reserved, "more memory than was asked for");
    free(body);
    return 0;
}
