/* SPDX-License-Identifier: Apache-2.0 */
/* process.h: what the kernel says of this process. */
#pragma once

/* Returns when the process started, in seconds since 1970; NAN when that cannot be
 * read. Every call gives another last digit, so call it once. */
double obs_process_start(void);

/* A value that cannot be read, as when no descriptor is left, is NAN. */
struct obs_process {
    double cpu;      /* seconds, of user and system */
    double resident; /* bytes */
    double open_fds, max_fds;
};

/* Thread-safe. */
struct obs_process obs_process_read(void);
