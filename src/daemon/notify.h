/* SPDX-License-Identifier: Apache-2.0 */
/* notify.h: reports readiness and liveness to systemd: the protocol of sd_notify(3), as
 * datagrams to the socket that NOTIFY_SOCKET names.
 *
 * Without that variable nothing is sent. A message that cannot be sent within a second is
 * dropped. All functions but the first may be called by any thread. */
#pragma once

#include <stdint.h>

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. A socket that cannot be used is
 * logged as a warning. Call it once, before the other functions. */
void notify_init(void);

#define NOTIFY_READY    "READY=1" /* attnd serves, or has ended a reload */
#define NOTIFY_STOPPING "STOPPING=1"
#define NOTIFY_ALIVE    "WATCHDOG=1"

void notify_send(const char *text);
void notify_reloading(void);

/* Returns how often NOTIFY_ALIVE should be sent, in ns; 0: never. */
int64_t notify_alive_ns(void);
