/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: a clock that never goes backwards, for durations and deadlines. */
#ifndef ATTND_BASE_CLOCK_H
#define ATTND_BASE_CLOCK_H

#include <stdint.h>

/* Returns the nanoseconds since a fixed point in the past. Thread-safe. */
int64_t clock_now_ns(void);

#endif
