/* SPDX-License-Identifier: Apache-2.0 */
/* heap.h: how malloc() returns memory to the system. Both functions do nothing where
 * the C library is not glibc. */
#ifndef ATTND_BASE_HEAP_H
#define ATTND_BASE_HEAP_H

#include <stddef.h>

/* Makes every large allocation a mapping of its own, so that free() returns its pages at
 * once. Call it before there are threads. */
void heap_init(void);

/* Returns the pages that malloc() holds free, if that may be more than `keep` bytes. It
 * takes malloc()'s locks for some microseconds, or milliseconds when there is much to
 * return. Thread-safe. */
void heap_trim(size_t keep);

#endif
