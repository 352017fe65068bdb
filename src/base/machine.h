/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h: how much of this machine the process may use. */
#ifndef ATTND_BASE_MACHINE_H
#define ATTND_BASE_MACHINE_H

#include <stddef.h>

/* Returns the number of CPUs that this process may use, at least 1: those that it may be
 * scheduled on, or fewer when a cgroup (version 1 or 2) limits its share; part of a CPU
 * counts as one. `root` is "" but for tests, which put a /proc and /sys of their own
 * below it. */
size_t machine_cpus(const char *root);

/* Returns the bytes of memory that this process may use: the machine's, or fewer when a
 * cgroup limits it. `root` as above. */
size_t machine_memory(const char *root);

#endif
