# SPDX-License-Identifier: Apache-2.0
"""Makes calls of the C library fail inside a running attnd: builds preload.c and steers it."""

import contextlib
import errno
import functools
import mmap
import os
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from http1 import Connection, get_bytes
from server import SCRATCH, Server, is_sanitized

FOLDER = Path(__file__).resolve().parent
LONG = os.environ.get("FAULTS_LONG") == "1"

# As in preload.h.
KINDS = ("malloc", "calloc", "realloc", "aligned_alloc", "mmap", "pthread_create", "accept", "recv",
         "send", "write", "read", "epoll_ctl", "epoll_wait", "epoll_create", "eventfd", "socket",
         "bind", "listen", "open", "getrandom", "lchown", "flock")
MEMBERS = ("in_main", "kinds", "fail_from", "fail_count", "error", "counted", "failed", "live",
           "clock_offset_ns", "record", "large")
SITE_AT = 8 * len(MEMBERS)
STACKS_AT = SITE_AT + 256
STACKS_MAX = 65536

ALLOCATIONS = KINDS[:6]
# What the manual pages list for each call, without what would be a mistake of attnd (EBADF, EFAULT)
# and without EAGAIN, after which Linux reports the descriptor again and a failing library does not.
ERRORS = {
    "accept": ("EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "ECONNABORTED", "EINTR", "EPROTO"),
    "recv": ("ECONNRESET", "EINTR", "EIO", "ENOMEM", "ETIMEDOUT"),
    "send": ("ECONNRESET", "EPIPE", "EINTR", "EIO", "ENOMEM", "ENOBUFS"),
    "write": ("EIO", "ENOSPC", "EPIPE", "EINTR"),
    "read": ("EIO", "EINTR", "ENOMEM"),
    "epoll_ctl": ("ENOMEM", "ENOSPC"),
    "epoll_wait": ("EINTR",),
    "epoll_create": ("EMFILE", "ENFILE", "ENOMEM"),
    "eventfd": ("EMFILE", "ENFILE", "ENOMEM"),
    "socket": ("EMFILE", "ENFILE", "ENOMEM", "EACCES"),
    "bind": ("EADDRINUSE", "EACCES", "ENOMEM"),
    "listen": ("EADDRINUSE",),
    "open": ("EMFILE", "ENFILE", "ENOMEM", "EIO", "EACCES", "EINTR"),
    "getrandom": ("ENOSYS",),
    "lchown": ("EPERM", "EIO", "EROFS"),
    "flock": ("EWOULDBLOCK", "ENOLCK"),
}


@functools.cache
def build_preload():
    """Compiles preload.c once; returns the path of the library."""
    library = Path(SCRATCH.name) / "preload.so"
    subprocess.run([*os.environ.get("CC", "cc").split(), "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra",
                    "-Werror", "-shared", "-fPIC", "-o", library, FOLDER / "preload.c", "-ldl"],
                   check=True)
    return library


def why_not():
    """Returns the reason why preload.c cannot work with this binary, or an empty text."""
    return "a sanitizer replaces malloc itself, so preload.c cannot" if is_sanitized() else ""


class Control:
    """The block of memory that preload.c shares with the test."""

    def __init__(self):
        with tempfile.NamedTemporaryFile(dir=SCRATCH.name, delete=False) as file:
            self.path = file.name
            file.truncate(STACKS_AT + 8 * STACKS_MAX)
            self.memory = mmap.mmap(file.fileno(), 0)

    def __getattr__(self, name):
        return struct.unpack_from("q", self.memory, 8 * MEMBERS.index(name))[0]

    def write(self, **values):
        for name, value in values.items():
            struct.pack_into("q", self.memory, 8 * MEMBERS.index(name), value)

    def arm(self, kinds, nth, error="ENOMEM", count=1):
        """From now on the nth call of these kinds fails, and `count` - 1 more."""
        self.write(kinds=0)
        self.write(fail_from=nth, fail_count=count, error=getattr(errno, error), counted=0,
                   failed=0)
        self.write(kinds=sum(1 << KINDS.index(kind) for kind in kinds))

    def disarm(self):
        """Lets all calls work again; returns how many failed."""
        self.write(kinds=0)
        return self.failed

    @property
    def site(self):
        text = self.memory[SITE_AT:STACKS_AT]
        return text[:text.index(0)].decode()

    def first_of_each_stack(self):
        """Returns the numbers of those recorded calls whose stack was not seen before."""
        count = min(self.counted, STACKS_MAX)
        stacks = struct.unpack_from(f"{count}Q", self.memory, STACKS_AT)
        first = {}
        for number, stack in enumerate(stacks, 1):
            first.setdefault(stack, number)
        return sorted(first.values())

    def environment(self):
        return {"LD_PRELOAD": str(build_preload()), "FAULTS_CONTROL": self.path}

    def close(self):
        self.memory.close()
        os.unlink(self.path)


@contextlib.contextmanager
def faulty_server(*arguments, **environment):
    """Starts a server with preload.c; yields (server, control). Where preload.c cannot work, the
    server is one without, and the control None."""
    if why_not():
        with Server(*arguments, **environment) as server:
            yield server, None
        return
    control = Control()
    try:
        with Server(*arguments, **control.environment(), **environment) as server:
            yield server, control
    finally:
        control.close()


def exchange(port, data, timeout=20):
    """Sends one request on a connection of its own, see Connection. Returns the reply, or None where the server
    closed the connection before it was complete."""
    with Connection(port, timeout) as connection:
        connection.send(data)
        try:
            reply = connection.read_reply(head_only=data.startswith(b"HEAD "))
            return connection.read_reply() if reply and reply.status == 100 else reply
        except AssertionError:
            return None


def is_healthy(server):
    try:
        reply = exchange(server.port, get_bytes("/v2/health/live"), timeout=5)
    except OSError:
        return False
    return reply is not None and reply.status == 200


def num_fds(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def wait_until(condition, seconds, what):
    """Returns once the condition holds; it is a failure if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def settled(measure):
    """Returns measure() once it has stayed the same for a fifth of a second: a connection that is closed
    here keeps its blocks and its descriptor until the server has noticed."""
    end, since, value = time.monotonic() + 10, time.monotonic(), measure()
    while time.monotonic() < since + 0.2:
        time.sleep(0.01)
        if (now := measure()) != value:
            since, value = time.monotonic(), now
        assert time.monotonic() < end, "it never stays the same"
    return value
