# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup for servers, of version 1 or 2, whichever the machine has."""

import contextlib
import os
import re
import tempfile
import time
from pathlib import Path

import server

# Of each version: the parent, the limit, the limit with swap, the peak, and the file that counts
# the processes that the kernel has killed.
VERSIONS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes",
     "memory.max_usage_in_bytes", "memory.oom_control"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max", "memory.peak", "memory.events"),
)


class Cgroup:
    def __init__(self, parent, limit, swap, peak, killed):
        self.folder = parent / f"attnd-test-{os.getpid()}"
        self.limit, self.swap = self.folder / limit, self.folder / swap
        self.peak_file, self.killed_file = self.folder / peak, self.folder / killed

    def make(self, size):
        """Returns whether the group was made. If not, nothing of it is left."""
        try:
            self.folder.mkdir()
            # Not created: in a container the parent may be a folder like any other.
            with os.fdopen(os.open(self.limit, os.O_WRONLY), "w") as file:
                file.write(str(size))
        except OSError:
            self.remove()
            return False
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            self.swap.write_text("0" if self.swap.name == "memory.swap.max" else str(size))
        return True

    @contextlib.contextmanager
    def holds_new_servers(self):
        """Starts servers inside the group meanwhile, by a script that enters it first."""
        program = server.BINARY
        with tempfile.TemporaryDirectory(prefix="attnd-cgroup-") as folder:
            script = Path(folder) / "attnd"
            script.write_text(f'#!/bin/sh\necho $$ > {self.folder}/cgroup.procs &&\n'
                              f'exec {program} "$@"\n')
            script.chmod(0o755)
            server.BINARY = script
            try:
                yield
            finally:
                server.BINARY = program

    @property
    def peak(self):
        return int(self.peak_file.read_text())

    @property
    def num_killed(self):
        """How many processes the kernel killed because the group had no memory left."""
        return int(re.search(r"(?m)^oom_kill (\d+)$", self.killed_file.read_text())[1])

    def remove(self):
        """Waits, because the kernel needs a moment after the last process has ended."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            if not self.folder.exists():
                return
            time.sleep(0.1)


@contextlib.contextmanager
def memory_cgroup(size):
    """Yields a new cgroup that may use `size` bytes, or None where none can be made."""
    groups = (Cgroup(*version) for version in VERSIONS)
    made = next((group for group in groups if group.make(size)), None)
    try:
        yield made
    finally:
        if made:
            made.remove()
