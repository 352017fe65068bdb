/* SPDX-License-Identifier: Apache-2.0 */
/* read.h: reads the options of any program from its flags. */
#pragma once

#include "config/option.h"

/* Fills *ret_values, the struct of the set, from flags and defaults; `argv` begins after
 * the program's name. On success the caller owns what is in it, until option_deinit().
 * Errors, with one line that names the first defect: ATTN_E_VALUE, ATTN_E_NOMEM. */
attn_status option_read_flags(const struct option_set *set, int argc, char *const *argv,
                              void *ret_values, attn_error *ret_error);

/* Frees the texts of a struct of the set; a zeroed struct is fine. */
void option_deinit(const struct option_set *set, void *values);
