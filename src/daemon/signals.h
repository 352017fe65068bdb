/* SPDX-License-Identifier: Apache-2.0 */
/* signals.h: signals, as what the main loop is asked to do.
 *
 * sigwait() would not do: OpenBLAS starts threads before main(), and a signal mask that
 * is set later does not reach them. */
#pragma once

#include <attnd/status.h>
#include <stdbool.h>

/* Installs the handlers. SIGTERM and SIGINT end the process at once with
 * `loading_exit_code`: while models load, nothing is accepted and nothing can be lost.
 * Without a handler the kernel would ignore them where attnd is process 1. SIGHUP and
 * SIGUSR1 are remembered, and SIGUSR2 is ignored. Errors: ATTN_E_IO when there is no
 * descriptor. */
attn_status signals_init(int loading_exit_code, attn_error *ret_error);

/* From now on the first SIGTERM or SIGINT asks to stop, and the second ends the process
 * at once with EXIT_FAILURE. */
void signals_end_loading(void);

/* Waits for a signal, `wait_ms` at most. */
void signals_wait(int wait_ms);

/* Whether a signal has asked to stop. Any thread may call it. */
bool signals_stop_requested(void);

/* Whether SIGHUP, or SIGUSR1, has come since the last call. */
bool signals_take(int signal_number);
