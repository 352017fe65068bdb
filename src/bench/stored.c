/* SPDX-License-Identifier: Apache-2.0 */
/* bench/stored.c: keys as captures keep them. */
#include "base/heap.h"
#include "bench/bench.h"
#include "math/model.h"

#include <string.h>

void *bench_stored_alloc(size_t count, size_t size) {
    size_t bytes = count * size + HEAP_ALIGNMENT - 1;
    return heap_alloc(bytes - bytes % HEAP_ALIGNMENT);
}

attn_status bench_stored_make(const attn_model *model, size_t num_keys,
                              const float *input, struct attn_packed ret_packed[2],
                              uint16_t **ret_halves) {
    struct attn_packed packed = {.num_kv_heads = model->info.num_kv_heads,
                                 .num_keys = num_keys,
                                 .head_size = model->engine.score_size,
                                 .value_size = model->info.width.head,
                                 .keys = input,
                                 .keys_type = "F32",
                                 .values_type = "F32"};
    size_t count = packed.num_kv_heads * packed_head_ld(&packed, packed.head_size);

    *ret_halves = bench_stored_alloc(count + (size_t)2 * KEY_BLOCK, sizeof **ret_halves);
    if (*ret_halves == NULL)
        return ATTN_E_NOMEM;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &input[i], sizeof bits);
        (*ret_halves)[i] = (uint16_t)(bits >> 16);
    }
    ret_packed[0] = packed;
    packed.keys = *ret_halves;
    packed.keys_type = "BF16";
    ret_packed[1] = packed;
    return ATTN_OK;
}
