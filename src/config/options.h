/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the options of attnd, and those that it is asked for in vain. */
#pragma once

#include "config/config.h"

extern const struct option_set config_options; /* they fill a struct config */

/* Returns what to do instead of an option that other programs have, a clause, or NULL
 * where none of this name is known. */
const char *option_find_foreign(const char *name, char separator);
