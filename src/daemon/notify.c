/* SPDX-License-Identifier: Apache-2.0 */
/* notify.c: one socket, connected at start. */
#include "daemon/notify.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static int notify_fd = -1;
static int64_t alive_ns;

/* Returns half of the time after which the manager considers attnd dead; 0 when it does
 * not watch this process. */
static int64_t find_alive_ns(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (usec == NULL || (pid != NULL && strtoll(pid, NULL, 10) != getpid()))
        return 0;
    long long limit = strtoll(usec, NULL, 10);
    return limit > 0 && limit < INT64_MAX / 1000 ? limit * 1000 / 2 : 0;
}

void notify_init(void) {
    const char *path = getenv("NOTIFY_SOCKET");
    const struct timeval longest = {.tv_sec = 1};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path == NULL)
        return;

    size_t size = strlen(path);
    int fd = -1;
    errno = EAFNOSUPPORT;
    if ((*path == '/' || *path == '@') && size < sizeof address.sun_path) {
        memcpy(address.sun_path, path, size);
        if (*path == '@') /* it stands for the zero byte of an abstract name */
            address.sun_path[0] = '\0';
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    }
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, length) == 0) {
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
        notify_fd = fd;
        alive_ns = find_alive_ns();
        return;
    }
    log_write(LOG_WARN, "cannot use NOTIFY_SOCKET, no notification will be sent",
              LOG_TEXT("reason", strerror(errno)));
    if (fd >= 0)
        close(fd);
}

void notify_send(const char *text) {
    if (notify_fd >= 0 && send(notify_fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        log_write(LOG_WARN, "the service manager was not told", LOG_TEXT("what", text),
                  LOG_TEXT("reason", strerror(errno)));
}

void notify_reloading(void) {
    char text[64];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%" PRId64,
             clock_now_ns() / 1000);
    notify_send(text);
}

int64_t notify_alive_ns(void) {
    return alive_ns;
}
