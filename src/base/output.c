/* SPDX-License-Identifier: Apache-2.0 */
/* output.c: polls before it writes. A pipe that polls as writable has a free page, which
 * takes PIPE_BUF bytes. */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int output_open(int fd) {
    struct stat status;
    char path[40];

    if (fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)))
        return fd; /* a file that is opened anew has a position of its own */

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return own >= 0 ? own : fd;
}

ssize_t output_write(int fd, const char *text, size_t size) {
    struct pollfd room = {.fd = fd, .events = POLLOUT};

    if (poll(&room, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(fd, text, size); /* what poll() reports as an error fails here, too */
}
