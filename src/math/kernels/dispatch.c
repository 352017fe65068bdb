/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch.c: which sets of kernels this CPU can run, and how much scratch they need. */
#include "base/size.h"
#include "math/kernels/sets.h"

#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of arch_prctl(2) and CPUID. */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18
#define CPUID_7_EDX_BF16    (1U << 22)
#define CPUID_7_EDX_TILE    (1U << 24)

static bool is_intel(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == signature_INTEL_ebx;
}

/* Asks the operating system for the matrix tiles; returns an errno, or 0. */
static int ask_for_matrix(void) {
    long result = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
    return result == 0 ? 0 : errno;
}

/* Returns why it refuses, with the remedy. */
static const char *refusal_text(int error) {
    if (error == ENOSPC)
        return "matrix tiles (AMX) need alternate signal stacks of at least "
               "AT_MINSIGSTKSZ bytes in all threads";
    if (error == EINVAL || error == EOPNOTSUPP)
        return "matrix tiles (AMX) need Linux 5.16 or later, with AMX enabled";
    return "a sandbox refuses matrix tiles (AMX): let it allow the system call "
           "arch_prctl with 0x1023 (ARCH_REQ_XCOMP_PERM)";
}
#endif

#define SETS_MAX 7

bool kernels_have_matrix(const char **ret_refused) {
#ifdef __x86_64__
    enum { NOT_ASKED = -1 };
    static atomic_int answer = NOT_ASKED; /* an errno, or 0: allowed */
    unsigned eax, ebx, ecx, edx;

    *ret_refused = NULL;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
        (edx & CPUID_7_EDX_BF16) == 0 || (edx & CPUID_7_EDX_TILE) == 0 ||
        !__builtin_cpu_supports("avx512bf16"))
        return false;
    /* All threads of the process may use tiles then. It is asked once more, in vain, when
     * two threads are the first. */
    if (atomic_load(&answer) == NOT_ASKED)
        atomic_store(&answer, ask_for_matrix());
    if (atomic_load(&answer) != 0)
        *ret_refused = refusal_text(atomic_load(&answer));
    return *ret_refused == NULL;
#else
    *ret_refused = NULL;
    return false;
#endif
}

#ifdef EVERY_SET
/* Adds models of the sets that this CPU lacks; returns how many there are then. */
static size_t add_models(const struct kernels *sets[SETS_MAX], size_t count) {
    static const struct kernels *const models[] = {
        &model_avx512, &model_avx2, &model_amx_f32, &model_avx512_bf16, &model_amx_bf16};

    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        size_t i = 0;
        while (i < count && (strcmp(sets[i]->name, models[m]->name) != 0 ||
                             sets[i]->k_step != models[m]->k_step))
            i++;
        sets[i] = i < count ? sets[i] : models[m];
        count += i == count;
    }
    return count;
}
#endif

/* Lists what this CPU has, fastest first; returns how many. Intel's AVX512-BF16
 * multiplies at half the rate of float32, so it is only listed with `slow`, or in a build
 * for tests. */
static size_t list_sets(const struct kernels *ret_sets[SETS_MAX], bool slow) {
    size_t count = 0;
#ifdef EVERY_SET
    slow = true;
#endif
    (void)slow; /* of x86-64 only */

#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
        ret_sets[count++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        ret_sets[count++] = &kernels_avx2;
#elif defined(__aarch64__)
    ret_sets[count++] = &kernels_neon; /* part of every arm64 */
#endif
    ret_sets[count++] = &kernels_portable;
#ifdef __x86_64__
    const char *refused;
    bool has_matrix = kernels_have_matrix(&refused);
    if (has_matrix)
        ret_sets[count++] = &kernels_amx_f32;
    if (ret_sets[0] == &kernels_avx512 && __builtin_cpu_supports("avx512bf16") &&
        (slow || !is_intel()))
        ret_sets[count++] = &kernels_avx512_bf16;
    if (has_matrix)
        ret_sets[count++] = &kernels_amx_bf16;
#endif
#ifdef EVERY_SET
    count = add_models(ret_sets, count);
#endif
    return count;
}

const struct kernels *kernels_available(size_t index) {
    const struct kernels *sets[SETS_MAX];

    return index < list_sets(sets, false) ? sets[index] : NULL;
}

const struct kernels *kernels_runnable(size_t index) {
    const struct kernels *sets[SETS_MAX];

    return index < list_sets(sets, true) ? sets[index] : NULL;
}

const struct kernels *kernels_get(const char *name, bool bf16) {
    const struct kernels *sets[SETS_MAX];
    size_t count = list_sets(sets, false), k_step = bf16 ? 2 : 1;

    for (size_t i = 0; i < count; i++) {
        bool named = strcmp(name, sets[i]->name) == 0;
        if ((named || strcmp(name, "auto") == 0) && sets[i]->k_step == k_step)
            return sets[i];
    }
    return NULL;
}

size_t kernel_scratch_bytes(size_t score_size, size_t head_size, size_t key_len,
                            bool weights) {
    size_t kept = weights && key_len > KEY_BLOCK ? key_len : KEY_BLOCK;
    size_t rows, bytes, blocks = weights ? key_len / KEY_BLOCK + 1 : 0;

    /* The arrays of struct state in attend.inc, for the widest panel, need one block of
     * keys besides, and those of struct few in few.inc no more, except for outputs, whose
     * rows are whole panels. matrix/attend.inc has spans of two blocks, of scores and of
     * pairs, and one more for weights. */
    if (!size_add(score_size, head_size, &rows) || !size_add(rows, head_size, &rows) ||
        !size_add(rows, kept, &rows) || !size_add(rows, blocks, &rows) ||
        !size_add(rows, (weights ? 6 : 3) * KEY_BLOCK + 2 * KERNEL_COLUMNS_MAX, &rows) ||
        !size_mul(rows, KERNEL_COLUMNS_MAX * sizeof(float), &bytes))
        return SIZE_MAX;
    return bytes;
}
