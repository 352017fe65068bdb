/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h: how much of this machine the process may use. */
#pragma once

#include <stddef.h>

/* Returns the number of CPUs that this process may use, at least 1. These are the CPUs
 * that it may be scheduled on, or fewer when a cgroup (version 1 or 2) limits it; a
 * fraction of a CPU counts as one. `root` is "", but tests pass a folder with a /proc and
 * /sys of their own. */
size_t machine_cpus(const char *root);

/* Returns the bytes of memory that this process may use: those of the machine, or fewer
 * when a cgroup limits it. `root` is as above. */
size_t machine_memory(const char *root);

/* Returns how many bytes of memory this process could take now without swapping: those
 * that the machine has available, or fewer when a cgroup has less left. What a cgroup
 * holds of files that were not used lately counts as left. `root` is as above. */
size_t machine_free_memory(const char *root);
