/* SPDX-License-Identifier: Apache-2.0 */
/* command.h: attnd-bench http. */
#pragma once

/* Puts load on a server and prints what became of it; `argv` begins after "http".
 * Returns the exit code: 1 when it could not be done, 2 for a wrong option or file. */
int bench_http(int argc, char **argv);
