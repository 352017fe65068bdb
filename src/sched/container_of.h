/* SPDX-License-Identifier: Apache-2.0 */
/* container_of.h: from a member to the struct that embeds it. */
#pragma once

#include <stddef.h>

/* Returns the `type` whose `member` is at `pointer`. A callback that gets a struct
 * sched_job finds the struct that it belongs to in this way. */
#define container_of(pointer, type, member)                                              \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))
