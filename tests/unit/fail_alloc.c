/* SPDX-License-Identifier: Apache-2.0 */
/* fail_alloc.c: wrappers of the allocating functions, of which one chosen call fails. */
#include "fail_alloc.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);

static atomic_size_t countdown; /* 0: nothing fails */
static atomic_bool failed;
static atomic_size_t counted, counted_from = SIZE_MAX;

static bool fails_now(void) {
    size_t left = countdown;
    while (left > 0 && !atomic_compare_exchange_weak(&countdown, &left, left - 1))
        ;
    if (left == 1)
        failed = true;
    return left == 1;
}

static void count_alloc(size_t size) {
    if (size >= counted_from)
        counted++;
}

void fail_alloc_at(size_t nth) {
    countdown = nth;
    failed = false;
}

bool fail_alloc_stop(void) {
    countdown = 0;
    return failed;
}

void count_alloc_from(size_t bytes) {
    counted = 0;
    counted_from = bytes;
}

size_t count_alloc_stop(void) {
    counted_from = SIZE_MAX;
    return counted;
}

void *__wrap_malloc(size_t size) {
    count_alloc(size);
    return fails_now() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
    return fails_now() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *memory, size_t size) {
    return fails_now() ? NULL : __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    count_alloc(size);
    return fails_now() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text) {
    return fails_now() ? NULL : __real_strdup(text);
}
