/* SPDX-License-Identifier: Apache-2.0 */
/* serve.h: the command serve. */
#pragma once

#include "config/config.h"

/* Loads the models, serves until a signal asks to stop, and stops in order. `commit`
 * is that of this build. Returns the exit code of the process: 0, 1, or 2 for wrong
 * options. */
int daemon_serve(const struct config *config, const char *commit);
