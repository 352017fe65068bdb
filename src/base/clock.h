/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h: time that never goes back. */
#ifndef ATTND_BASE_CLOCK_H
#define ATTND_BASE_CLOCK_H

#include <stdint.h>

/* Returns nanoseconds since some fixed point in the past. Thread-safe. */
int64_t clock_now_ns(void);

#endif
