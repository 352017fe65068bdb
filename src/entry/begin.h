/* SPDX-License-Identifier: Apache-2.0 */
/* begin.h: what each function of the library's calls does first and last. */
#pragma once

#include <attnd/status.h>
#include <locale.h>

/* Prepares the readers, once, and gives the thread the C locale, in which numbers have a
 * point. The caller ends with entry_end(). Thread-safe. Errors: ATTN_E_NOMEM. */
attn_status entry_begin(locale_t *ret_before, attn_error *ret_error);

/* Gives the thread its locale back. */
void entry_end(locale_t before);
