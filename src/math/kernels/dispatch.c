/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c: which of the sets of kernels runs on this CPU. */
#include "base/size.h"
#include "math/kernels/sets.h"

#include <stdint.h>
#include <string.h>

#define SETS_MAX 4

/* Fills in what this CPU has, fastest first; returns how many. */
static size_t find_sets(const struct kernels *sets[SETS_MAX]) {
    size_t count = 0;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        sets[count++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        sets[count++] = &kernels_avx2;
#elif defined(__aarch64__)
    sets[count++] = &kernels_neon; /* part of every arm64 */
#endif
    sets[count++] = &kernels_portable;
#ifdef __x86_64__
    if (sets[0] == &kernels_avx512 && __builtin_cpu_supports("avx512bf16"))
        sets[count++] = &kernels_avx512_bf16;
#endif
    return count;
}

const struct kernels *kernels_available(size_t index) {
    const struct kernels *sets[SETS_MAX];
    return index < find_sets(sets) ? sets[index] : NULL;
}

const struct kernels *kernels_get(const char *name, size_t numbers) {
    const struct kernels *sets[SETS_MAX];
    size_t count = find_sets(sets);
    for (size_t i = 0; i < count; i++) {
        if ((strcmp(name, "auto") == 0 || strcmp(name, sets[i]->name) == 0) &&
            sets[i]->numbers == numbers)
            return sets[i];
    }
    return NULL;
}

size_t kernel_scratch_bytes(size_t score_size, size_t head_size, size_t key_len,
                            bool weights) {
    size_t kept = weights && key_len > KEY_BLOCK ? key_len : KEY_BLOCK;
    size_t rows, bytes, blocks = weights ? key_len / KEY_BLOCK + 1 : 0;
    if (!size_add(score_size, head_size, &rows) || !size_add(rows, kept, &rows) ||
        !size_add(rows, blocks, &rows) || !size_add(rows, KEY_BLOCK, &rows) ||
        !size_mul(rows, KERNEL_COLUMNS_MAX * sizeof(float), &bytes))
        return SIZE_MAX;
    return bytes;
}
