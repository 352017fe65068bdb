/* SPDX-License-Identifier: Apache-2.0 */
/* signals.c: handlers that set flags and wake the main loop through an eventfd. */
#include "daemon/signals.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int wake_fd = -1;
static volatile sig_atomic_t loading_code;
static atomic_bool has_loaded, stop_requested, noted[NSIG];

static void wake_main_loop(void) {
    const uint64_t one = 1;
    int error = errno; /* of the code that the signal interrupts */
    ssize_t written = write(wake_fd, &one, sizeof one);
    (void)written; /* fails only after 2^64 - 2 unread signals */
    errno = error;
}

static void handle_stop(int signal_number) {
    (void)signal_number;
    if (!atomic_load(&has_loaded))
        _exit(loading_code);
    if (atomic_exchange(&stop_requested, true)) {
        log_from_handler(LOG_WARN, "a second signal ended attnd at once");
        _exit(EXIT_FAILURE);
    }
    wake_main_loop();
}

static void note_signal(int signal_number) {
    atomic_store(&noted[signal_number], true);
    wake_main_loop();
}

static void set_handler(int signal_number, void (*handler)(int signal_number)) {
    const struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(signal_number, &action, NULL);
}

attn_status signals_init(int loading_exit_code, attn_error *ret_error) {
    loading_code = loading_exit_code;
    wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd < 0)
        return error_set(ret_error, ATTN_E_IO,
                         "cannot create an eventfd: %s; "
                         "raise the limit of open files (ulimit -n)",
                         strerror(errno));
    set_handler(SIGPIPE, SIG_IGN);
    set_handler(SIGUSR2, SIG_IGN);
    set_handler(SIGHUP, note_signal);
    set_handler(SIGUSR1, note_signal);
    set_handler(SIGTERM, handle_stop);
    set_handler(SIGINT, handle_stop);
    return ATTN_OK;
}

void signals_end_loading(void) {
    atomic_store(&has_loaded, true);
}

void signals_wait(int wait_ms) {
    struct pollfd wake = {.fd = wake_fd, .events = POLLIN};
    uint64_t times;

    if (poll(&wake, 1, wait_ms) == 1) {
        ssize_t size = read(wake_fd, &times, sizeof times);
        (void)size; /* cannot fail: it is readable, and only this thread reads it */
    }
}

bool signals_stop_requested(void) {
    return atomic_load(&stop_requested);
}

bool signals_take(int signal_number) {
    return atomic_exchange(&noted[signal_number], false);
}
