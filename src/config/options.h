/* SPDX-License-Identifier: Apache-2.0 */
/* options.h: the options of attnd, and those that it had. */
#pragma once

#include "config/config.h"

extern const struct option_set config_options; /* they fill a struct config */

/* Returns what to do instead of an option that an earlier version had, a clause, or NULL
 * where there was none of this name. */
const char *option_find_retired(const char *name, char separator);
