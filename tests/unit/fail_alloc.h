/* SPDX-License-Identifier: Apache-2.0 */
/* fail_alloc.h: makes one chosen allocation of the code under test fail, or counts large
 * ones.
 *
 *     for (size_t nth = 1;; nth++) {
 *         fail_alloc_at(nth);
 *         status = code_under_test();
 *         if (!fail_alloc_stop())
 *             break;                        // all allocations were tried
 *         assert_int_equal(status, ATTN_E_NOMEM);
 *     }
 *
 * Works by the linker's --wrap on malloc, calloc, realloc, aligned_alloc and strdup;
 * jansson takes part after parse_json_init(), or json_set_alloc_funcs(malloc, free). All
 * threads count. */
#ifndef ATTND_TESTS_FAIL_ALLOC_H
#define ATTND_TESTS_FAIL_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* Makes the nth allocation from now on, counted from 1, fail; all others work. */
void fail_alloc_at(size_t nth);

/* Lets all allocations work again; returns whether one failed. */
bool fail_alloc_stop(void);

/* From now on allocations of at least `bytes` are counted, by malloc or aligned_alloc. */
void count_alloc_from(size_t bytes);

/* Ends that; returns how many there were. */
size_t count_alloc_stop(void);

#endif
