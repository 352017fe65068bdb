/* SPDX-License-Identifier: Apache-2.0 */
/* output.c: polls before it writes. A pipe that polls as writable has a free page, which
 * takes PIPE_BUF bytes. A new file gets its name by link(), which, unlike rename(), does
 * not replace what another program has made meanwhile. */
#include "base/output.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
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

ssize_t output_write(int fd, const char *text, size_t size, int wait_ms) {
    struct pollfd room = {.fd = fd, .events = POLLOUT};

    if (poll(&room, 1, wait_ms) == 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(fd, text, size); /* what poll() reports as an error fails here, too */
}

static attn_status refuse_existing(const char *path, attn_error *ret_error) {
    return error_set(ret_error, ATTN_E_VALUE,
                     "%.200s exists already; remove it, or choose another name", path);
}

attn_status output_check_new(const char *path, attn_error *ret_error) {
    struct stat status;
    return lstat(path, &status) == 0 ? refuse_existing(path, ret_error) : ATTN_OK;
}

/* Returns false with errno set. */
static bool write_all(int fd, const char *bytes, size_t size) {
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno != EINTR)
            return false;
        if (written > 0) {
            bytes += written;
            size -= (size_t)written;
        }
    }
    return true;
}

/* Writes all bytes to the disk and closes `fd`. Returns false with errno set. */
static bool write_file(int fd, const char *bytes, size_t size) {
    bool written = write_all(fd, bytes, size) && fsync(fd) == 0;

    int error = errno;
    bool closed = close(fd) == 0; /* where some file systems report a full disk */
    if (!written)
        errno = error;
    return written && closed;
}

attn_status output_create_file(const char *path, const char *bytes, size_t size,
                               attn_error *ret_error) {
    char part[PATH_MAX];
    attn_status status = output_check_new(path, ret_error);
    if (status != ATTN_OK)
        return status;
    if (snprintf(part, sizeof part, "%s.part", path) >= (int)sizeof part)
        return error_set(ret_error, ATTN_E_VALUE, "%.200s...: the path is too long",
                         path);

    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST)
        return refuse_existing(part, ret_error);
    if (fd < 0)
        return error_set(ret_error, ATTN_E_IO, "%.200s cannot be created: %s", path,
                         strerror(errno));

    if (!write_file(fd, bytes, size) || link(part, path) != 0)
        status = errno == EEXIST
                     ? refuse_existing(path, ret_error)
                     : error_set(ret_error, ATTN_E_IO, "%.200s cannot be written: %s",
                                 path, strerror(errno));
    unlink(part);
    return status;
}
