/* SPDX-License-Identifier: Apache-2.0 */
/* check.h: what works, and is hardly meant: warnings at start. */
#pragma once

#include "config/config.h"
#include "models/list.h"

/* Warns of a --trusted-proxy that is everybody, of an --admin-listen that everybody
 * reaches, and of few descriptors. */
void check_config(const struct config *config);

/* For root, which can read all: becomes another user for a while, and warns of files of
 * models that this one cannot read. The process has no groups afterwards, so it is the
 * last that it does. */
void check_readable(const struct config *config, const struct model_list *list);
