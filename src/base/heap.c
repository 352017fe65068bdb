/* SPDX-License-Identifier: Apache-2.0 */
/* heap.c: allocates large blocks, and fixes a threshold of glibc. It would rise to the
 * size of the largest block that was freed, up to 32 MiB, and glibc would keep all blocks
 * below it. */
#include "base/heap.h"

#include <stdint.h>
#include <stdlib.h> /* __GLIBC__ */
#include <sys/mman.h>

#define HUGE_PAGE_BYTES      ((size_t)2 * 1024 * 1024)
#define HUGE_PAGES_BLOCK_MIN (2 * HUGE_PAGE_BYTES)

#ifdef __GLIBC__
#include <malloc.h>

/* Blocks of at least this size are mapped. Mapping costs a fault for each page: a request
 * with a body of 1.2 MB takes half as much CPU time again when its blocks are mapped. */
#define MAPPED_BYTES_MIN (4 * 1024 * 1024)
/* More than this at the end of a heap is returned. */
#define HEAP_END_BYTES_MAX (4 * 1024 * 1024)
#endif

void heap_init(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
    mallopt(M_TRIM_THRESHOLD, HEAP_END_BYTES_MAX);
#endif
}

void heap_trim(size_t keep) {
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 33)
    if (mallinfo2().fordblks <= keep) /* bytes that are free */
        return;
#endif
    malloc_trim(0);
#endif
    (void)keep;
}

void *heap_alloc(size_t bytes) {
    if (bytes < HUGE_PAGES_BLOCK_MIN)
        return aligned_alloc(HEAP_ALIGNMENT, bytes);

    /* Sanitizers hold callers to a multiple of the alignment. */
    if (bytes > SIZE_MAX - HUGE_PAGE_BYTES)
        return NULL;
    size_t pages = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES;
    void *block = aligned_alloc(HUGE_PAGE_BYTES, pages * HUGE_PAGE_BYTES);
#ifdef MADV_HUGEPAGE
    if (block != NULL)
        madvise(block, bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
#endif
    return block;
}
