/* SPDX-License-Identifier: Apache-2.0 */
/* heap.h: how malloc() gets memory from the system and returns it. */
#pragma once

#include <stddef.h>

#define HEAP_ALIGNMENT 64 /* bytes */

/* Makes every large allocation a mapping of its own, so that free() returns its pages at
 * once. Call it before there are threads. Does nothing where the C library is not
 * glibc. */
void heap_init(void);

/* Returns the pages that malloc() holds free, if that may be more than `keep` bytes. It
 * takes malloc()'s locks for some microseconds, or milliseconds when there is much to
 * return. Thread-safe. Does nothing where the C library is not glibc. */
void heap_trim(size_t keep);

/* Allocates uninitialised memory, which free() releases, at a multiple of HEAP_ALIGNMENT.
 * `bytes` is a multiple of it too. A large block asks for huge pages: it is then written
 * for the first time with a fault for each 2 MiB, not for each 4 KiB. Returns NULL when
 * memory is short. Thread-safe. */
void *heap_alloc(size_t bytes);
